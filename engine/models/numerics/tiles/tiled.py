"""Bitwise equal rows for chains and trees: sums over tiles of logical positions.

As `fixed`, but a query's weighted values are summed tile by tile, TILE positions
at a time, and tiles are added in order. A drafted node enters the tile of its
position, whatever column it stands in; columns that belong to another tile or
that the query does not see enter as exact zeros. A product over at most
TILE + SCRATCH columns adds its terms one after the other on this kind of
machine (the probe finds out), so zeros between them change nothing, and a
query's sum has the same terms in the same order as in sequential decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.core.errors import InvalidRequest
from engine.models.cache import CacheShape, TensorSlotCache
from engine.models.interface import Placement
from engine.models.numerics.interface import AttentionLayout, AttentionWindow, HeadSizes, Invariance
from engine.models.numerics.layouts import (
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
from engine.models.numerics.tiles import constant_rows
from engine.models.numerics.tiles.constant_rows import filled
from engine.models.numerics.tiles.fixed import (
    MOST_QUERIES,
    FixedNumerics,
    by_query_blocks,
    cache_with_ones,
    divided,
    query_blocks,
    round_up,
    row_multiple,
    softmax_weights,
)

TILE = 128
SCRATCH = 64
"""How far a tree's columns may reach into the next tile."""


@dataclass(frozen=True, slots=True)
class TiledLayout:
    """`mask` [B * kv_heads, width * group, columns] is additive.

    members: per tile, [B, 1, 1, 1, TILE + SCRATCH] of 0 and 1, which columns of its window are the tile's;
    None where every column stands in its own tile.
    seen: for each block of query rows, how many tiles any of them sees.
    """

    placement: Placement
    heads: HeadSizes
    pads: Padding
    mask: Tensor
    tiles: int
    members: tuple[Tensor, ...] | None
    seen: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Columns of a tile's window."""
        return TILE if self.members is None else TILE + SCRATCH


class TiledNumerics(FixedNumerics):
    """Row-invariant products and attention summed by tiles."""

    name = "tiled"
    promises = Invariance.TREE
    most_tree_nodes = SCRATCH

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """Whole tiles of keys with a scratch region after them, and values with a column of ones."""
        return cache_with_ones(shape, dtype, round_up(shape.capacity + 1, TILE) + SCRATCH)

    def layout(self, placement: Placement, heads: HeadSizes, dtype: torch.dtype) -> AttentionLayout:
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

    def windows(self, cache: TensorSlotCache, layout: AttentionLayout) -> Sequence[AttentionWindow]:
        """Keys [B * kv_heads, head_dim, columns], and values by tile [B * kv_heads, tile, head_dim + 1]."""
        assert isinstance(layout, TiledLayout)
        rows = batch_rows(layout.placement)
        keys = cache.all_keys[:, rows, :, : layout.mask.shape[-1]].flatten(1, 2).transpose(2, 3).unbind()
        values = [
            cache.all_values[:, rows, :, tile * TILE : tile * TILE + layout.reach].flatten(1, 2).unbind()
            for tile in range(layout.tiles)
        ]
        return [AttentionWindow(key, tuple(tiles)) for key, *tiles in zip(keys, *values, strict=True)]

    def attend(self, queries: Tensor, window: AttentionWindow, layout: AttentionLayout) -> Tensor:
        """One product for all scores, one per tile for the values."""
        assert isinstance(layout, TiledLayout)
        pads, heads = layout.pads, layout.heads
        turned = grouped(queries.to(window.keys.dtype), pads, heads)
        whole = layout
        if constant_rows.needed(turned.device):
            # a GPU's library may choose another kernel for fewer columns
            everything = (layout.tiles,) * len(layout.seen)
            whole = replace(layout, mask=filled(layout.mask, 1, MOST_QUERIES), seen=everything)
        total = by_query_blocks(turned, lambda rows, part: _attended(rows, window, whole, part))
        return ungrouped(divided(total, heads), pads, heads).to(queries.dtype)


def _attended(queries: Tensor, window: AttentionWindow, layout: TiledLayout, part: slice) -> Tensor:
    """[B * kv_heads, rows of the part, head_dim + 1] weighted values of one block of query rows.

    Tiles that none of them sees would add exact zeros.
    """
    tiles = layout.seen[part.start // MOST_QUERIES]
    columns = (tiles - 1) * TILE + layout.reach
    weights = softmax_weights(queries, window.keys[..., :columns], layout.mask[:, part, :columns], layout.heads)
    total = torch.bmm(tile_weights(weights, layout, 0), window.values[0])
    for tile in range(1, tiles):
        total += torch.bmm(tile_weights(weights, layout, tile), window.values[tile])
    return total


def seen_tiles(placement: Placement, pads: Padding, heads: HeadSizes, tiles: int) -> tuple[int, ...]:
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
