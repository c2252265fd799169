"""Map the entries of a trace's counted columns to their steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.record.trace import Ints


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """[n] the step of each entry of a counted column, and the entry's number within it."""

    step: NDArray[np.int64]
    local: NDArray[np.int64]


def numbered(counts: Ints) -> EntryIndex:
    """Number the entries of `counts` [S], all 0 or more."""
    step = np.repeat(np.arange(len(counts)), counts)
    return EntryIndex(step, np.arange(len(step)) - (np.cumsum(counts, dtype=np.int64) - counts)[step])
