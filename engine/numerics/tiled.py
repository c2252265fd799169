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

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import CacheShape, TensorSlotCache
from engine.errors import InvalidRequest
from engine.models.base import Placement
from engine.numerics.base import Heads, Invariance, Layout
from engine.numerics.fixed import (
    FixedNumerics,
    cache_with_ones,
    divided,
    round_up,
    row_multiple,
    scaled,
    softmax_weights,
)
from engine.numerics.layouts import Padding, additive_mask, padding, ungrouped, working_dtype

TILE = 128
SCRATCH = 64
"""How far a tree's columns may reach into the next tile."""


@dataclass(frozen=True, slots=True)
class TiledLayout:
    """`mask` [B, 1, width, 1, columns] is additive.

    members: per tile, [B, 1, 1, 1, TILE + SCRATCH] of 0 and 1, which columns of its window are the tile's;
    None where every column stands in its own tile.
    """

    placement: Placement
    heads: Heads
    pads: Padding
    mask: Tensor
    tiles: int
    members: tuple[Tensor, ...] | None


class TiledNumerics(FixedNumerics):
    """Row-invariant products and attention summed by tiles."""

    name = "tiled"
    promises = Invariance.TREE

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """Whole tiles of keys with a scratch region after them, and values with a column of ones."""
        return cache_with_ones(shape, dtype, round_up(shape.capacity + 1, TILE) + SCRATCH)

    def layout(self, placement: Placement, heads: Heads, dtype: torch.dtype) -> Layout:
        """The mask over all tiles.

        Raises:
            InvalidRequest: a tree of more than SCRATCH nodes reaches over a tile's end.
        """
        pads = padding(placement, row_multiple(heads))
        members = tile_members(placement, working_dtype(dtype))
        tiles = len(members) if members else round_up(placement.span, TILE) // TILE
        columns = tiles * TILE + (SCRATCH if members else 0)
        mask = additive_mask(placement, pads, columns, working_dtype(dtype))
        return TiledLayout(placement, heads, pads, mask[:, None, :, None], tiles, members)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
        """One product for all scores, one per tile for the values."""
        assert isinstance(layout, TiledLayout)
        pads, heads = layout.pads, layout.heads
        turned = scaled(queries, keys.dtype, pads, heads)
        weights = softmax_weights(turned, keys[:, :, : layout.mask.shape[-1]], layout.mask)
        total = tile_sum(weights, values, layout, 0)
        for tile in range(1, layout.tiles):
            total += tile_sum(weights, values, layout, tile)
        return ungrouped(divided(total, heads), pads, heads).to(queries.dtype)


def tile_sum(weights: Tensor, values: Tensor, layout: TiledLayout, tile: int) -> Tensor:
    """The weighted values of one tile, [B * kv_heads, width * group, head_dim + 1]."""
    start = tile * TILE
    stop = start + TILE + (SCRATCH if layout.members else 0)
    mine = weights[..., start:stop]
    if layout.members is not None:
        batch = layout.pads.batch
        mine = (mine.view(batch, layout.heads.kv_heads, -1, stop - start) * layout.members[tile]).flatten(0, 1)
    return torch.bmm(mine, values[:, :, start:stop].flatten(0, 1))


def tile_members(placement: Placement, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
    """Which columns belong to which tile, [B, 1, 1, TILE + SCRATCH] per tile; None if each stands in its own.

    Raises:
        InvalidRequest: a column lies more than SCRATCH columns after its tile.
    """
    if placement.branches is None:
        return None
    real = torch.arange(placement.tokens.shape[1]) < torch.tensor(placement.lengths)[:, None]
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
