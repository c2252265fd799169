"""The layers of a DFlash drafter: a block of rows that all see one another, and a context of target features.

In every layer the context's keys and values are made of the same features, which
no layer changes; the block's are made of the previous layer's output. A context's keys and values are therefore
written once. Source: DFlash, arXiv 2602.06036.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.cache import CacheShape, CacheViews, TensorSlotCache, aim_at
from engine.models.interface import Placement
from engine.models.lean_weights import LeanConfig, rope_frequencies
from engine.models.numerics.devices import moved
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine, GrowingRope, HeadSizes, Matrix, Norm, RopeTables
from engine.models.numerics.layouts import flat


@dataclass(frozen=True, slots=True)
class _BlockLayer:
    """One layer, ready to run; queries apart from keys and values, which the context has too."""

    attention_norm: Norm
    queries: Matrix
    keys_values: Matrix
    query_norm: Norm | None
    key_norm: Norm | None
    out: Matrix
    ffn_norm: Norm
    gate_up: Matrix
    down: Matrix


class BlockDecoder:
    """Layers of a drafter in `dtype`, by the names of `engine.heads.formats.dflash`."""

    def __init__(self, config: LeanConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self._device = next(iter(tensors.values())).device
        self._numerics = FastNumerics()
        self._heads = HeadSizes(config.heads, config.kv_heads, config.head_dim, config.context)
        self._rope = GrowingRope(self._numerics, rope_frequencies(config), config.context, dtype)
        self._fc = self._numerics.matrix(Affine(self._tensors["fc"], None))
        self._hidden_norm = self._norm("hidden_norm", config.hidden)
        self._last_norm = self._norm("norm", config.hidden)
        self._layers = tuple(self._prepare(f"layers.{i}.") for i in range(config.layers))

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache of `capacity` columns."""
        config = self._config
        shape = CacheShape(config.layers, rows, config.kv_heads, capacity, config.head_dim, device=self._device)
        return self._numerics.new_cache(shape, self._dtype)

    def read(self, cache: TensorSlotCache, placement: Placement, states: Tensor) -> None:
        """Write the context's keys and values for [N, features * hidden] states of the target."""
        features, rope = self._hidden_norm(self._fc(states.to(self._dtype))), self._turns(placement)
        opened = cache.open(moved(aim_at(placement), self._device))
        for index, layer in enumerate(self._layers):
            self._write(cache, opened, index, self._keys_values(layer, features, rope))

    def forward(self, cache: TensorSlotCache, placement: Placement, embedded: Tensor) -> Tensor:
        """[N, hidden] embeddings of the placed block -> [N, hidden] after the last norm."""
        numerics, config, x = self._numerics, self._config, embedded
        rope = self._turns(placement)
        layout = moved(numerics.layout(placement, self._heads, self._dtype), self._device)
        opened, windows = cache.open(moved(aim_at(placement), self._device)), numerics.windows(cache, layout)
        for index, layer in enumerate(self._layers):
            normed = layer.attention_norm(x)
            self._write(cache, opened, index, self._keys_values(layer, normed, rope))
            queries = layer.queries(normed).view(-1, config.heads, config.head_dim)
            queries = queries if layer.query_norm is None else layer.query_norm(queries)
            x = x + layer.out(numerics.attend(numerics.rotate(queries, rope), windows[index], layout))
            x = x + layer.down(numerics.gate(layer.gate_up(layer.ffn_norm(x))))
        return self._last_norm(x)

    def _turns(self, placement: Placement) -> RopeTables:
        turns: RopeTables = moved(self._rope.at(flat(placement.positions, placement)), self._device)
        return turns

    def _keys_values(self, layer: _BlockLayer, rows: Tensor, rope: RopeTables) -> Tensor:
        """[N, 2 * kv_heads, head_dim]: rotated keys, then values."""
        count = self._config.kv_heads
        both = layer.keys_values(rows).view(-1, 2 * count, self._config.head_dim)
        keys, values = torch.split(both, [count, count], 1)
        normed = keys if layer.key_norm is None else layer.key_norm(keys)
        return torch.cat([self._numerics.rotate(normed, rope), values], 1)

    def _write(self, cache: TensorSlotCache, opened: CacheViews, index: int, keys_values: Tensor) -> None:
        keys, values = keys_values.chunk(2, 1)
        cache.write(index, opened, keys, values)

    def _norm(self, name: str, width: int) -> Norm:
        return self._numerics.norm(self._tensors[name], self._config.eps, width)

    def _fused(self, prefix: str, *names: str) -> Matrix:
        biases = [self._tensors[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in self._tensors]
        weight = torch.cat([self._tensors[f"{prefix}{name}.weight"] for name in names])
        return self._numerics.matrix(Affine(weight, torch.cat(biases) if biases else None))

    def _prepare(self, prefix: str) -> _BlockLayer:
        hidden, width = self._config.hidden, self._config.head_dim
        normed = self._config.qk_norm
        return _BlockLayer(
            attention_norm=self._norm(f"{prefix}input_layernorm.weight", hidden),
            queries=self._fused(prefix, "self_attn.q_proj"),
            keys_values=self._fused(prefix, "self_attn.k_proj", "self_attn.v_proj"),
            query_norm=self._norm(f"{prefix}self_attn.q_norm.weight", width) if normed else None,
            key_norm=self._norm(f"{prefix}self_attn.k_norm.weight", width) if normed else None,
            out=self._fused(prefix, "self_attn.o_proj"),
            ffn_norm=self._norm(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self._fused(prefix, "mlp.gate_proj", "mlp.up_proj"),
            down=self._fused(prefix, "mlp.down_proj"),
        )
