"""Bitwise equal rows for chains and trees: fixed row counts and key lengths, and sums over tiles of logical positions.

`fixed`, for chains: products go through a kernel whose rows do not depend on each other. Attention is explicit: a query
at position t always works on the first (t // BUCKET + 1) * BUCKET columns, hidden ones included as exact zeros, in a
product with a multiple of ROWS query rows. The softmax's denominator comes from the same product as the numerator,
through a column of ones beside the values. A chain's column is its position, so plain and speculative decoding then do
the same sums in the same order; a tree puts tokens into other columns, so the mode promises nothing for trees.
Attention is in float32 for bfloat16 models.

`tiled`, for trees too: a query's weighted values are summed tile by tile, TILE positions at a time, and tiles are added
in order. A drafted node enters the tile of its position, whatever column it stands in; columns that belong to another
tile or that the query does not see enter as exact zeros. A product over at most TILE + SCRATCH columns adds its terms
one after the other on this kind of machine (the probe finds out), so zeros between them change nothing, and a query's
sum has the same terms in the same order as in sequential decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.core.errors import InvalidRequest
from engine.models.cache import CacheShape, TensorSlotCache
from engine.models.interface import Placement
from engine.models.numerics import constant_rows, interface
from engine.models.numerics.constant_rows import filled
from engine.models.numerics.fast import FastNumerics, gated, packed, padded, plain, rms_norm
from engine.models.numerics.layouts import (
    MaskedLayout,
    Padding,
    additive_mask,
    batch_rows,
    grouped,
    padded_positions,
    padding,
    per_head,
    ungrouped,
    working_dtype,
)
from engine.models.numerics.ordered.panels import panels

ROWS = 4
"""Query rows of a product are a multiple of this: MKL's kernels for fewer rows round differently."""
BUCKET = 256
MOST_QUERIES = 64
"""Query rows of one product: from 128 rows on MKL takes a kernel that adds the terms of some shapes in another order
(128 rows or more by 128 columns over a head of 32 numbers, measured)."""
SERIAL = 32768
"""From this many numbers on, torch shares an elementwise operation among threads (its GRAIN_SIZE)."""
TILE = 128
SCRATCH = 64
"""How far a tree's columns may reach into the next tile."""


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """A key length, which queries [B * kv_heads, width * group, 1] have it, and which blocks of query rows have any."""

    columns: int
    mine: Tensor | None
    """None means all."""
    blocks: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class FixedLayout(MaskedLayout):
    """`mask` [B * kv_heads, width * group, columns] is additive."""

    mask: Tensor
    buckets: Sequence[LengthBucket]

    def whole(self) -> FixedLayout:
        """The layout for a multiple of MOST_QUERIES query rows, each of which works on every bucket."""
        result = [
            bucket
            if bucket.mine is None
            else replace(bucket, mine=filled(bucket.mine, 1, MOST_QUERIES), blocks=(True,) * len(bucket.blocks))
            for bucket in self.buckets
        ]
        return replace(self, mask=filled(self.mask, 1, MOST_QUERIES), buckets=result)

    def attended(self, queries: Tensor, window: interface.AttentionWindow, part: slice) -> Tensor:
        """[B * kv_heads, rows of the part, head_dim + 1] weighted values of one block of query rows.

        There is a product per bucket; each query keeps the result of its own bucket.
        """
        total = None
        for bucket in self.buckets:
            if not bucket.blocks[part.start // MOST_QUERIES]:
                continue
            mask = self.mask[:, part, : bucket.columns]
            weights = softmax_weights(queries, window.keys[..., : bucket.columns], mask, self.heads)
            result = torch.bmm(weights, window.values[0][:, : bucket.columns])
            total = result if total is None or bucket.mine is None else torch.where(bucket.mine[:, part], result, total)
        assert total is not None
        return total


class FixedNumerics(FastNumerics):
    """Row-invariant products and bucketed explicit attention."""

    name = "fixed"
    promises = interface.Invariance.CHAIN
    most_tree_nodes: int | None = None

    def matrix(self, affine: interface.Affine) -> interface.Matrix:
        """The product through panels, or the packed one; where there is neither, the plain one on padded rows, or on a
        constant number of them.
        """
        if constant_rows.needed(affine.weight.device):
            return constant_rows.by_blocks(plain(affine))
        return panels(affine) or packed(affine) or padded(affine, ROWS)

    def norm(self, weight: Tensor | None, eps: float, width: int) -> interface.Norm:
        """Row by row, in float32 for 16-bit models."""
        norm = rms_norm(weight, eps, width)
        cut = constant_rows.by_blocks(norm)
        return lambda x: cut(x) if constant_rows.needed(x.device) else norm(x)

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up."""
        return gated_in_parts(gate_up)

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """Whole buckets of keys, and values with a column of ones."""
        return cache_with_ones(shape, dtype, round_up(shape.capacity + 1, BUCKET))

    def layout(self, placement: Placement, heads: interface.HeadSizes, dtype: torch.dtype) -> interface.AttentionLayout:
        """The mask over the largest bucket, and each query's bucket."""
        pads = padding(placement, row_multiple(heads))
        columns = round_up(placement.span, BUCKET)
        mask = additive_mask(placement, pads, columns, working_dtype(dtype))
        return FixedLayout(placement, heads, pads, per_head(mask, heads), buckets(placement, pads, heads))

    def windows(self, cache: TensorSlotCache, layout: interface.AttentionLayout) -> Sequence[interface.AttentionWindow]:
        """Keys [B * kv_heads, head_dim, columns] and values [B * kv_heads, columns, head_dim + 1]."""
        rows = batch_rows(layout.placement)
        keys = cache.all_keys[:, rows].flatten(1, 2).transpose(2, 3).unbind()
        values = cache.all_values[:, rows].flatten(1, 2).unbind()
        return [interface.AttentionWindow(key, (value,)) for key, value in zip(keys, values, strict=True)]

    def attend(self, queries: Tensor, window: interface.AttentionWindow, layout: interface.AttentionLayout) -> Tensor:
        """The weighted values of each query, block by block of query rows."""
        assert isinstance(layout, FixedLayout | TiledLayout)
        pads, heads = layout.pads, layout.heads
        turned = grouped(queries.to(window.keys.dtype), pads, heads)
        whole = layout.whole() if constant_rows.needed(turned.device) else layout
        total = by_query_blocks(turned, lambda rows, part: whole.attended(rows, window, part))
        return ungrouped(divided(total, heads), pads, heads).to(queries.dtype)


def by_query_blocks(queries: Tensor, attended: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Attention [M, rows, ...] of query rows [M, rows, head_dim], ordered as by `grouped`, block by block.

    `attended` gives the answer for one block of rows, and gets which rows they are.
    """
    constant = constant_rows.needed(queries.device)
    whole = filled(queries, 1, MOST_QUERIES) if constant else queries
    parts = [attended(whole[:, part], part) for part in query_blocks(whole.shape[1])]
    total = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return total[:, : queries.shape[1]]


def query_blocks(rows: int) -> list[slice]:
    """The query rows of a forward in blocks of at most MOST_QUERIES."""
    return [slice(first, min(first + MOST_QUERIES, rows)) for first in range(0, rows, MOST_QUERIES)]


def gated_in_parts(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [N, 2 F], by as many rows at once as torch leaves to one thread.

    Two threads would meet in the middle of a row, and the end of a thread's share is computed with other instructions
    and another exponential than the rest.
    """
    most = max(1, (SERIAL - 1) // (gate_up.shape[-1] // 2))
    return gated(gate_up) if len(gate_up) <= most else torch.cat([gated(part) for part in torch.split(gate_up, most)])


def buckets(placement: Placement, pads: Padding, heads: interface.HeadSizes) -> list[LengthBucket]:
    """The key lengths of a placement, ascending; a tree has one, that of its last column."""
    largest, blocks = round_up(placement.span, BUCKET), query_blocks(pads.width * heads.group)
    everywhere = (True,) * len(blocks)
    if placement.branches is not None or largest == BUCKET:
        return [LengthBucket(largest, None, everywhere)]
    lengths = padded_positions(placement, pads) // BUCKET * BUCKET + BUCKET
    kinds = sorted(set(lengths.flatten().tolist()))
    if len(kinds) == 1:
        return [LengthBucket(kinds[0], None, everywhere)]
    per_head = lengths[:, None, :, None].expand(-1, heads.kv_heads, -1, heads.group)
    rows = per_head.reshape(pads.batch * heads.kv_heads, -1, 1)
    result = [(length, rows == length) for length in kinds]
    return [LengthBucket(length, mine, tuple(bool(mine[:, part].any()) for part in blocks)) for length, mine in result]


def cache_with_ones(shape: CacheShape, dtype: torch.dtype, columns: int) -> TensorSlotCache:
    """A cache in the attention's dtype whose values end in a one."""
    wide = replace(shape, columns=columns, value_dim=shape.head_dim + 1)
    cache = TensorSlotCache(wide, working_dtype(dtype))
    for values in cache.values:
        values[..., -1] = 1.0
    return cache


def row_multiple(heads: interface.HeadSizes) -> int:
    """The width multiple that makes query rows (width times group) a multiple of ROWS."""
    multiple = 1
    while multiple * heads.group % ROWS:
        multiple += 1
    return multiple


def round_up(count: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `count`."""
    return count + -count % multiple


def softmax_weights(queries: Tensor, keys: Tensor, mask: Tensor, heads: interface.HeadSizes) -> Tensor:
    """exp(score - largest score) [B * kv_heads, width * group, columns], not normalised.

    `keys` [B * kv_heads, head_dim, columns]; scores are divided by sqrt(head_dim).
    """
    scores = torch.baddbmm(mask, queries, keys, alpha=heads.head_dim**-0.5)
    return scores.sub_(scores.amax(-1, keepdim=True)).exp_()


def divided(total: Tensor, heads: interface.HeadSizes) -> Tensor:
    """Numerators by the denominator that stands after them."""
    return total.narrow(2, 0, heads.head_dim) / total.narrow(2, heads.head_dim, 1)


@dataclass(frozen=True, slots=True)
class TiledLayout(MaskedLayout):
    """`mask` [B * kv_heads, width * group, columns] is additive.

    members: per tile, [B, 1, 1, 1, TILE + SCRATCH] of 0 and 1, which columns of its window are the tile's;
    None where every column stands in its own tile.
    seen: for each block of query rows, how many tiles any of them sees.
    """

    mask: Tensor
    tiles: int
    members: tuple[Tensor, ...] | None
    seen: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Columns of a tile's window."""
        return TILE if self.members is None else TILE + SCRATCH

    def whole(self) -> TiledLayout:
        """The layout for a multiple of MOST_QUERIES query rows, each of which works on every tile."""
        # a GPU's library may choose another kernel for fewer columns
        return replace(self, mask=filled(self.mask, 1, MOST_QUERIES), seen=(self.tiles,) * len(self.seen))

    def attended(self, queries: Tensor, window: interface.AttentionWindow, part: slice) -> Tensor:
        """[B * kv_heads, rows, head_dim + 1] weighted values of one block of query rows, without tiles that none sees.

        There is one product for all scores, and one per tile for the values.
        """
        tiles = self.seen[part.start // MOST_QUERIES]
        columns = (tiles - 1) * TILE + self.reach
        weights = softmax_weights(queries, window.keys[..., :columns], self.mask[:, part, :columns], self.heads)
        total = torch.bmm(tile_weights(weights, self, 0), window.values[0])
        for tile in range(1, tiles):
            total += torch.bmm(tile_weights(weights, self, tile), window.values[tile])
        return total


class TiledNumerics(FixedNumerics):
    """Row-invariant products and attention summed by tiles."""

    name = "tiled"
    promises = interface.Invariance.TREE
    most_tree_nodes = SCRATCH

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """Whole tiles of keys with a scratch region after them, and values with a column of ones."""
        return cache_with_ones(shape, dtype, round_up(shape.capacity + 1, TILE) + SCRATCH)

    def layout(self, placement: Placement, heads: interface.HeadSizes, dtype: torch.dtype) -> interface.AttentionLayout:
        """The mask over all tiles.

        Raises:
            InvalidRequest: a tree of more than SCRATCH nodes reaches over a tile's end.
        """
        pads = padding(placement, row_multiple(heads))
        members = tile_members(placement, working_dtype(dtype))
        tiles = len(members) if members else round_up(placement.span, TILE) // TILE
        columns = tiles * TILE + (SCRATCH if members else 0)
        mask = additive_mask(placement, pads, columns, working_dtype(dtype))
        seen = seen_tiles(placement, pads, heads, tiles)
        return TiledLayout(placement, heads, pads, per_head(mask, heads), tiles, members, seen)

    def windows(self, cache: TensorSlotCache, layout: interface.AttentionLayout) -> Sequence[interface.AttentionWindow]:
        """Keys [B * kv_heads, head_dim, columns], and values by tile [B * kv_heads, tile, head_dim + 1]."""
        assert isinstance(layout, TiledLayout)
        rows = batch_rows(layout.placement)
        keys = cache.all_keys[:, rows, :, : layout.mask.shape[-1]].flatten(1, 2).transpose(2, 3).unbind()
        values = [
            cache.all_values[:, rows, :, tile * TILE : tile * TILE + layout.reach].flatten(1, 2).unbind()
            for tile in range(layout.tiles)
        ]
        return [interface.AttentionWindow(key, tuple(tiles)) for key, *tiles in zip(keys, *values, strict=True)]


def seen_tiles(placement: Placement, pads: Padding, heads: interface.HeadSizes, tiles: int) -> tuple[int, ...]:
    """For each block of query rows, how many tiles any of them sees; all for a tree."""
    blocks = query_blocks(pads.width * heads.group)
    if len(blocks) == 1 or placement.branches is not None:
        return (tiles,) * len(blocks)
    last = padded_positions(placement, pads).amax(0).tolist()
    ends = [max(last[part.start // heads.group : (part.stop - 1) // heads.group + 1]) for part in blocks]
    return tuple(end // TILE + 1 for end in ends)


def tile_weights(weights: Tensor, layout: TiledLayout, tile: int) -> Tensor:
    """The weights of one tile's columns [B * kv_heads, width * group, reach], zero where a column is another's."""
    mine = weights.narrow(2, tile * TILE, layout.reach)
    if layout.members is None:
        return mine
    by_row = mine.view(layout.pads.batch, layout.heads.kv_heads, *mine.shape[1:])
    return (by_row * layout.members[tile]).flatten(0, 1)


def tile_members(placement: Placement, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
    """Which columns belong to which tile, [B, 1, 1, TILE + SCRATCH] per tile; None if each stands in its own.

    Raises:
        InvalidRequest: a column lies more than SCRATCH columns after its tile.
    """
    if placement.branches is None:
        return None
    counts = torch.tensor(placement.real or placement.lengths)
    real = torch.arange(placement.tokens.shape[1]) < counts[:, None]
    if bool((placement.slots // TILE == placement.positions // TILE)[real].all()):
        return None
    tiles = int(placement.positions.max()) // TILE + 1
    columns = tiles * TILE + SCRATCH
    last = int(placement.slots[real].max())
    if last >= columns:
        raise InvalidRequest(
            f"tiled numerics: a tree reaches {last - tiles * TILE + 1} columns over the end of a tile, at most "
            f"{SCRATCH} are possible; draft smaller trees or use numerics: exact"
        )
    logical = torch.arange(columns).repeat(len(placement.lengths), 1)
    rows = torch.arange(len(placement.lengths))[:, None].expand_as(real)
    logical[rows[real], placement.slots[real]] = placement.positions[real]
    windows = [(logical // TILE == tile)[:, tile * TILE : (tile + 1) * TILE + SCRATCH] for tile in range(tiles)]
    return tuple(window.to(dtype)[:, None, None, :] for window in windows)
