"""The entries of a counted column: each step has as many of them as its count says, one step after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer[Any]]


def entries_before(counts: Counts) -> NDArray[np.int64]:
    """[S] the entries of all earlier steps, which is also the place of a step's first entry."""
    return np.asarray(np.cumsum(counts, dtype=np.int64) - counts)


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """[n] the step of each entry of a counted column of `counts` [S]."""

    counts: Counts
    step: NDArray[np.int64]

    @property
    def local(self) -> NDArray[np.int64]:
        """[n] the entry's number within its step."""
        return np.arange(len(self.step)) - entries_before(self.counts)[self.step]


def numbered(counts: Counts) -> EntryIndex:
    """Number the entries of `counts` [S], all 0 or more."""
    return EntryIndex(counts, np.repeat(np.arange(len(counts)), counts))
