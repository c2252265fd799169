"""Our own forward for llama, qwen2 and qwen3: plain functions over plain tensors.

About twice as fast as the module tree of transformers on small models, where
dispatch is most of the time, and short enough to be read whole. Arithmetic that
a numerics mode may want to replace sits in `linear`, `norm` and `attend`. Knows
nothing about folders, tokens' meaning, sampling or what is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache import CacheShape, TensorSlotCache, cache_rows, require_capacity
from engine.models.base import Forward, Placement, SlotCache, Want
from engine.models.folder import ModelFolder, read_tensors
from engine.models.lean_weights import (
    Affine,
    LayerWeights,
    LeanConfig,
    LeanWeights,
    RopeTables,
    build_weights,
    check_tensors,
    read_config,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What every layer of one forward needs: where to write, how far to turn, what to see."""

    rows: Tensor
    slots: Tensor
    """[B, 1] and [B, T]: cache row and column of each placed token."""
    rope: RopeTables
    """[B, T, 1, head_dim] each."""
    mask: Tensor | None
    """[B, 1, T, S] additive; None if every query sees every column."""
    first_row: int
    span: int


class LeanModel:
    """A `TargetModel` over fused weights, without autograd.

    Hidden states follow HF's `hidden_states`: 0 is the embedding, i the output of
    layer i, and the last id is taken after the final norm.
    """

    def __init__(
        self,
        config: LeanConfig,
        weights: LeanWeights,
        eos_ids: tuple[int, ...] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.vocabulary = config.vocabulary
        self.context = config.context
        self.eos_ids = eos_ids
        self.facts: Mapping[str, Any] = dict(facts or {})

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, cache and logits."""
        return self.weights.embedding.dtype

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache.

        Raises:
            CapacityError: `capacity` exceeds the model's context.
        """
        require_capacity(rows, capacity, self.context)
        config = self.config
        return TensorSlotCache(CacheShape(config.layers, rows, config.kv_heads, capacity, config.head_dim), self.dtype)

    @torch.no_grad()
    def forward(self, cache: SlotCache, placement: Placement, want: Want) -> Forward:
        """Write the placed tokens into the cache and return what is wanted."""
        if not isinstance(cache, TensorSlotCache):
            raise TypeError(f"a lean model needs the cache of its new_cache, not {type(cache).__name__}")
        weights, config = self.weights, self.config
        step = plan_step(placement, weights.rope, self.dtype)
        x = F.embedding(placement.tokens, weights.embedding)
        hidden = {0: x} if 0 in want.hidden else {}
        for index, layer in enumerate(weights.layers):
            x = x + attention_block(norm(x, layer.attention_norm, config.eps), layer, index, config, cache, step)
            x = x + ffn_block(norm(x, layer.ffn_norm, config.eps), layer)
            if index + 1 in want.hidden:
                hidden[index + 1] = x
        if want.logits or config.layers in want.hidden:
            x = norm(x, weights.norm, config.eps)
        if config.layers in want.hidden:
            hidden[config.layers] = x
        return Forward(F.linear(x, weights.head) if want.logits else None, hidden)


def plan_step(placement: Placement, tables: RopeTables, dtype: torch.dtype) -> Step:
    """Everything about a placement that the layers share."""
    return Step(
        rows=cache_rows(placement),
        slots=placement.slots,
        rope=RopeTables(tables.cos[placement.positions, None], tables.sin[placement.positions, None]),
        mask=additive_mask(placement.visible, dtype),
        first_row=placement.first_row,
        span=placement.visible.shape[2],
    )


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor | None:
    """[B, 1, T, S] with 0 where visible and -inf elsewhere; None if all is visible.

    Built once per forward: a bool mask would be converted again in every layer.
    """
    if bool(visible.all()):
        return None
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf")).unsqueeze(1)


def attention_block(
    x: Tensor, layer: LayerWeights, index: int, config: LeanConfig, cache: TensorSlotCache, step: Step
) -> Tensor:
    """Self-attention of one layer on normed input [B, T, hidden]; writes the layer's keys and values."""
    batch, width, _ = x.shape
    turned = config.heads + config.kv_heads
    qkv = linear(x, layer.qkv).view(batch, width, turned + config.kv_heads, config.head_dim)
    queries_keys = qkv[:, :, :turned]
    if layer.qk_norm is not None:
        queries_keys = norm(queries_keys, None, config.eps) * layer.qk_norm
    queries_keys = rotate(queries_keys, step.rope)
    cache.write(index, step.rows, step.slots, queries_keys[:, :, config.heads :], qkv[:, :, turned:])
    window = (slice(step.first_row, step.first_row + batch), slice(None), slice(step.span))
    queries = queries_keys[:, :, : config.heads].transpose(1, 2)
    seen = attend(queries, cache.keys[index][window], cache.values[index][window], step.mask)
    return linear(seen.transpose(1, 2).reshape(batch, width, -1), layer.out)


def ffn_block(x: Tensor, layer: LayerWeights) -> Tensor:
    """The gated feed-forward of one layer on normed input [B, T, hidden]."""
    gate, up = linear(x, layer.gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate) * up, layer.down)


def rotate(x: Tensor, rope: RopeTables) -> Tensor:
    """Rotary position embedding of [B, T, heads, head_dim] (Su et al., 2104.09864, in the half-split layout)."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], -1)
    return torch.addcmul(x * rope.cos, swapped, rope.sin)


def linear(x: Tensor, affine: Affine) -> Tensor:
    """The product x @ weight.T + bias."""
    return F.linear(x, affine.weight, affine.bias)


def norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention [B, heads, T, head_dim] over cached keys and values [B, kv_heads, S, head_dim]."""
    grouped = queries.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=grouped)


def from_tensors(
    document: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype, where: str = "config.json"
) -> LeanModel:
    """A model from a parsed config.json and tensors by their published names.

    Raises:
        ModelError: the configuration is not supported or the tensors do not fit it.
    """
    config = read_config(document, where)
    check_tensors(config, tensors, where)
    return LeanModel(config, build_weights(config, tensors, dtype))


def load_folder(folder: ModelFolder, dtype: torch.dtype, facts: Mapping[str, Any]) -> LeanModel:
    """The model in a folder of config.json and safetensors.

    Raises:
        ModelError: the configuration is not supported or the tensors do not fit it.
    """
    config = read_config(folder.config, folder.name("config.json"))
    tensors = read_tensors(folder)
    check_tensors(config, tensors, folder.name())
    return LeanModel(config, build_weights(config, tensors, dtype), folder.eos_ids, facts)
