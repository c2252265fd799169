"""From placed tokens to the regular shapes that attention needs, and back.

Everything but attention works on flat rows, one per placed token. Attention works on [B, W] queries; where rows differ
in length, the missing queries are copies of another token, and their answers are dropped.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.interface import Placement
from engine.models.numerics.devices import moved
from engine.models.numerics.interface import HeadSizes

HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Padding:
    """The mapping of N flat rows to [batch, width] and back.

    Where every batch row has one token, it is repeated; where the rows fill [batch, width], nothing is done;
    else two indices say which goes where.
    """

    batch: int
    width: int
    repeat: bool = False
    gather: Tensor | None = None
    """[batch * width] index of a flat row."""
    scatter: Tensor | None = None
    """[N] index into batch * width."""

    def pad(self, x: Tensor) -> Tensor:
        """[N, ...] -> [batch, width, ...]; a view if it can be."""
        if self.repeat:
            return x.unsqueeze(1).expand(-1, self.width, *x.shape[1:])
        rows = x if self.gather is None else x.index_select(0, self.gather)
        return rows.view(self.batch, self.width, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """[batch, width, ...] -> [N, ...]."""
        if self.repeat:
            return x.select(1, 0)
        rows = x.flatten(0, 1)
        return rows if self.scatter is None else rows.index_select(0, self.scatter)


@dataclass(frozen=True, slots=True)
class MaskedLayout:
    """`mask` is additive, of the shape of the scores; None where every query sees every column."""

    placement: Placement
    heads: HeadSizes
    pads: Padding
    mask: Tensor | None


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The attention's dtype for a model's: float32, or float64 for float64 models.

    For 16-bit models torch's own attention would convert keys and values on every call.
    """
    return torch.float64 if dtype is torch.float64 else torch.float32


def padding(placement: Placement, multiple: int = 1) -> Padding:
    """The padding of a placement to a width that is a multiple of `multiple`."""
    batch, width = placement.tokens.shape
    wide = width + -width % multiple
    if not placement.ragged and (wide == width or width == 1):
        return Padding(batch, wide, repeat=wide > width)
    lengths = np.array(placement.lengths)
    real = np.arange(wide)[None, :] < lengths[:, None]
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])[:, None]
    # the last placed token stands in where a row at the end is empty
    index = np.where(real, first + np.arange(wide), np.minimum(first, lengths.sum() - 1))
    return Padding(batch, wide, False, torch.from_numpy(index.ravel()), torch.from_numpy(np.flatnonzero(real)))


def is_alone(placement: Placement, pads: Padding) -> bool:
    """Whether the placement is the newest token of one row, which sees every column of the span."""
    newest = placement.branches is None and placement.real is None
    return newest and len(placement.lengths) == 1 and pads.width == 1


def flat(values: Tensor, placement: Placement) -> Tensor:
    """[B, T, ...] -> [N, ...], padding left out."""
    if not placement.ragged:
        return values.reshape(-1, *values.shape[2:])
    return torch.cat([row[:count] for row, count in zip(values, placement.lengths, strict=True)])


def unflat(rows: Tensor, placement: Placement) -> Tensor:
    """[N, ...] -> [B, T, ...]; values at padding are meaningless."""
    if not placement.ragged:
        return rows.view(*placement.tokens.shape, *rows.shape[1:])
    pads: Padding = moved(padding(placement), rows.device)
    return pads.pad(rows)


def additive_mask(placement: Placement, pads: Padding, columns: int, dtype: torch.dtype) -> Tensor:
    """[B, width, columns]: 0 where a query sees the column, -inf elsewhere; padding sees the columns of the token that
    it copies.
    """
    if placement.branches is None:
        seen = torch.arange(columns) <= padded_positions(placement, pads).unsqueeze(2)
    else:
        seen = pads.pad(flat(F.pad(placement.branches, (0, columns - placement.span)), placement))
    return torch.where(seen, 0.0, HIDDEN).to(dtype)


def padded_positions(placement: Placement, pads: Padding) -> Tensor:
    """[B, width] the position of each query."""
    return pads.pad(flat(placement.positions, placement))


def per_head(mask: Tensor, heads: HeadSizes) -> Tensor:
    """[B, width, columns] -> [B * kv_heads, width * group, columns], as `grouped` orders the queries."""
    batch, width, columns = mask.shape
    wide = mask[:, None, :, None].expand(-1, heads.kv_heads, -1, heads.group, -1)
    return wide.reshape(batch * heads.kv_heads, width * heads.group, columns)


def batch_rows(placement: Placement) -> slice:
    """The cache rows of the batch."""
    return slice(placement.first_row, placement.first_row + len(placement.lengths))


def grouped(queries: Tensor, pads: Padding, heads: HeadSizes) -> Tensor:
    """[N, heads, head_dim] -> [B * kv_heads, width * group, head_dim]; the group varies fastest."""
    shape = (pads.batch, pads.width, heads.kv_heads, heads.group, heads.head_dim)
    split = pads.pad(queries).view(shape).transpose(1, 2)
    return split.reshape(pads.batch * heads.kv_heads, pads.width * heads.group, heads.head_dim)


def ungrouped(seen: Tensor, pads: Padding, heads: HeadSizes) -> Tensor:
    """[B * kv_heads, width * group, head_dim] -> [N, heads * head_dim]."""
    split = seen.view(pads.batch, heads.kv_heads, pads.width, heads.group * heads.head_dim).transpose(1, 2)
    return pads.unpad(split).reshape(-1, heads.heads * heads.head_dim)
