"""Map the entries of a trace's counted columns to their steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.record.trace import Ints


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """[n] the step of each entry of a counted column of `counts` [S]."""

    counts: Ints
    step: NDArray[np.int64]

    @property
    def local(self) -> NDArray[np.int64]:
        """[n] the entry's number within its step."""
        return np.arange(len(self.step)) - (np.cumsum(self.counts, dtype=np.int64) - self.counts)[self.step]


def numbered(counts: Ints) -> EntryIndex:
    """Number the entries of `counts` [S], all 0 or more."""
    return EntryIndex(counts, np.repeat(np.arange(len(counts)), counts))
