"""The interface of a numerics mode: the arithmetic of one decoder, as one object.

A model asks the mode for every product, norm, activation and attention, so the mode alone determines the bits of its
logits. A mode declares its promise; `engine.models.probe.probe` tests whether this machine keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.models.cache import CacheShape, TensorSlotCache, WriteSlots
from engine.models.interface import Placement

Matrix = Callable[[Tensor], Tensor]
"""A prepared affine map: [N, in] -> [N, out] in the model's dtype."""
Norm = Callable[[Tensor], Tensor]
"""A prepared root-mean-square norm over the last dimension."""


class Invariance(IntEnum):
    """The placements that leave a committed position's logits unchanged, bit by bit. Each level contains the ones
    before.
    """

    NONE = 0
    """The shape of a forward may change the last bits."""
    CHAIN = 1
    """One token at a time, chains of any length, and any batch give the same bits."""
    TREE = 2
    """So do tokens placed as nodes of a tree."""
    EVERYWHERE = 3
    """So do any thread count, instruction set and machine."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [out, in] and its bias [out], if it has one."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class RopeTables:
    """[positions, head_dim] each; the first half of `sin` is negated, so a rotation is x * cos + swapped(x) * sin."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> RopeTables:
        """The rows [N, 1, head_dim] of positions [N]."""
        return RopeTables(*(item.index_select(0, positions).unsqueeze(1) for item in (self.cos, self.sin)))


class GrowingRope:
    """A mode's tables as far as positions reach: a file may claim any context, and only a part of it is used."""

    FIRST: Final = 4096

    def __init__(self, mode: Numerics, frequencies: Tensor, context: int, dtype: torch.dtype) -> None:
        self._mode, self._frequencies, self._context, self._dtype = mode, frequencies, context, dtype
        self._tables = self._reaching(self.FIRST)

    def at(self, positions: Tensor) -> RopeTables:
        """The rows [N, 1, head_dim] of positions [N] on the CPU, each below the context."""
        needed = 1 + int(positions.amax()) if len(positions) else 0
        if needed > len(self._tables.cos):
            self._tables = self._reaching(2 * needed)
        return self._tables.at(positions)

    def _reaching(self, positions: int) -> RopeTables:
        return self._mode.rope(self._frequencies, min(positions, self._context), self._dtype)


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The split of the hidden state into attention heads."""

    heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Most columns that a query can ever see."""

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """The keys and values that one layer's attention reads, as views of the cache in the mode's layout."""

    keys: Tensor
    values: tuple[Tensor, ...]


class AttentionLayout(Protocol):
    """The further inputs of one forward's attention; made once, used by every layer."""

    @property
    def placement(self) -> Placement:
        """The placement that it was made for."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The inputs of a forward: tokens, cache places, rotations and visibility."""

    tokens: Tensor
    """[N]"""
    aim: WriteSlots
    rope: RopeTables
    """[N, 1, head_dim] each."""
    layout: AttentionLayout


@dataclass(frozen=True, slots=True)
class LayerBody:
    """One decoder layer as a mode prepared it, but for the norm before its queries, keys and values."""

    qkv: Matrix
    qk_norm: Norm | None
    out: Matrix
    ffn_norm: Norm
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class DecoderLayer(LayerBody):
    """One whole decoder layer."""

    attention_norm: Norm


class LayerPass(Protocol):
    """One forward's way through the layers. Inputs are [N, hidden] and stay as they are; answers are sums with them."""

    def attention(self, index: int, x: Tensor, *, keys_only: bool = False) -> Tensor:
        """Add the attention of layer `index` to x; its keys and values are written.

        keys_only: write them, and answer x itself.
        """

    def ffn(self, index: int, x: Tensor) -> Tensor:
        """Add the feed-forward of layer `index` to x."""


class Layers(Protocol):
    """The layers of a model, ready to run."""

    def begin(self, cache: TensorSlotCache, step: ForwardContext) -> LayerPass | None:
        """Start a forward; None if it cannot run so."""


class Numerics(Protocol):
    """The arithmetic of one decoder. Stateless: every input of a forward is passed in.

    Activations are flat, one row per placed token (padding left out): x is [N, hidden].
    """

    name: str
    promises: Invariance
    most_tree_nodes: int | None
    """The most tokens of one step outside a chain, drafts and lookahead tokens together; None without a limit."""

    def matrix(self, affine: Affine) -> Matrix:
        """Prepare an affine map, once per model."""

    def norm(self, weight: Tensor | None, eps: float, width: int) -> Norm:
        """Prepare a norm over a last dimension of `width`, times `weight`, once per model."""

    def joined(self, layers: Sequence[DecoderLayer], heads: HeadSizes) -> Layers | None:
        """The layers with fewer calls and the same bits; None if the mode has only calls one by one."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for [N, 2 F] -> [N, F]."""

    def rotate(self, x: Tensor, rope: RopeTables) -> Tensor:
        """Rotary embedding of [N, heads, head_dim] by rows [N, 1, head_dim] of the tables."""

    def rope(self, frequencies: Tensor, positions: int, dtype: torch.dtype) -> RopeTables:
        """Tables for positions 0 to `positions` - 1 and float64 `frequencies` [head_dim / 2]."""

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """An empty cache as `attend` wants it, for a model of `dtype`."""

    def layout(self, placement: Placement, heads: HeadSizes, dtype: torch.dtype) -> AttentionLayout:
        """The data of a placement that the layers share."""

    def windows(self, cache: TensorSlotCache, layout: AttentionLayout) -> Sequence[AttentionWindow]:
        """The keys and values that the layers' attention will read: views, which reflect later writes."""

    def attend(self, queries: Tensor, window: AttentionWindow, layout: AttentionLayout) -> Tensor:
        """Attention of queries [N, heads, head_dim], already rotated, over the batch's cache rows.

        Args:
            queries: one row per placed token.
            window: of this layer and forward.
            layout: of this forward.

        Returns:
            [N, heads * head_dim] in the queries' dtype.
        """
