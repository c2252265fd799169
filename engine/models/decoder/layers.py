"""The layers of a lean model, call by call: each product, norm, rotation and attention is one request to its mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.cache import CacheViews, TensorSlotCache
from engine.models.numerics.interface import AttentionWindow, ForwardContext, HeadSizes, LayerBody, Norm, Numerics


@dataclass(frozen=True, slots=True)
class SeparateLayers:
    """Layers that any mode can run.

    attention_norms: one per layer; `attended` does without them.
    """

    layers: Sequence[LayerBody]
    attention_norms: Sequence[Norm]
    numerics: Numerics
    heads: HeadSizes

    def begin(self, cache: TensorSlotCache, step: ForwardContext) -> SeparatePass:
        """Open the cache for this forward's tokens."""
        return SeparatePass(self, cache, step, cache.open(step.aim), self.numerics.windows(cache, step.layout))


@dataclass(frozen=True, slots=True)
class SeparatePass:
    """One forward: `opened` is what it writes of the cache, `windows` what each layer reads."""

    of: SeparateLayers
    cache: TensorSlotCache
    step: ForwardContext
    opened: CacheViews
    windows: Sequence[AttentionWindow]

    def attention(self, index: int, x: Tensor, *, keys_only: bool = False) -> Tensor:
        """Call by call."""
        normed = self.of.attention_norms[index](x)
        if keys_only:
            self._queries(index, normed)
            return x
        return x + self.attended(index, normed)

    def attended(self, index: int, normed: Tensor) -> Tensor:
        """The attention alone [N, hidden] of layer `index`, whose input is normed already."""
        queries = self._queries(index, normed)
        return self.of.layers[index].out(self.of.numerics.attend(queries, self.windows[index], self.step.layout))

    def ffn(self, index: int, x: Tensor) -> Tensor:
        """Call by call."""
        layer = self.of.layers[index]
        return x + layer.down(self.of.numerics.gate(layer.gate_up(layer.ffn_norm(x))))

    def _queries(self, index: int, x: Tensor) -> Tensor:
        """Rotated queries [N, heads, head_dim] of normed input; writes keys and values."""
        layer, heads = self.of.layers[index], self.of.heads
        turned = heads.heads + heads.kv_heads
        qkv = layer.qkv(x).view(-1, turned + heads.kv_heads, heads.head_dim)
        queries_keys, values = torch.split(qkv, [turned, heads.kv_heads], 1)
        if layer.qk_norm is not None:
            queries_keys = layer.qk_norm(queries_keys)
        rotated = self.of.numerics.rotate(queries_keys, self.step.rope)
        queries, keys = torch.split(rotated, [heads.heads, heads.kv_heads], 1)
        self.cache.write(index, self.opened, keys, values)
        return queries
