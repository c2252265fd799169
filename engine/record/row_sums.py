"""Sums over parts of a row, from one pass over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats

BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class RowSums:
    """A row [V] of numbers >= 0 and the sums of its blocks of 512.

    Every result is a sum, never a difference: it is exactly 0 only if all entries are.
    """

    row: Floats
    blocks: Floats
    total: float

    @classmethod
    def of(cls, row: Floats) -> Self:
        """Add the entries of each block."""
        cut = len(row) // BLOCK * BLOCK
        blocks = np.append(row[:cut].reshape(-1, BLOCK).sum(axis=1), row[cut:].sum())
        return cls(row, blocks, float(blocks.sum()))

    def below(self, token: int) -> float:
        """Sum of the entries before a token."""
        block = token // BLOCK
        return float(self.blocks[:block].sum() + self.row[block * BLOCK : token].sum())

    def outside(self, ids: NDArray[np.int64]) -> float:
        """Sum of the entries without those of `ids`."""
        last = len(self.blocks) - 1
        cut = last * BLOCK
        rest, inside = self.row[cut:].copy(), ids[ids < cut]
        rest[ids[ids >= cut] - cut] = 0.0
        blocks = inside // BLOCK
        touched = np.flatnonzero(np.bincount(blocks, minlength=last))
        parts, others = self.row[:cut].reshape(-1, BLOCK)[touched], self.blocks[:last].copy()
        parts[np.searchsorted(touched, blocks), inside % BLOCK] = 0.0
        others[touched] = 0.0
        return float(others.sum() + parts.sum() + rest.sum())
