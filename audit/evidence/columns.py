"""Where the entries of a trace's counted columns belong: to which step, and which of its entries they are.

Knows nothing about what the columns hold.
"""

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
    """The entries that `counts` [S] count, none of them negative."""
    step = np.repeat(np.arange(len(counts)), counts)
    return EntryIndex(step, np.arange(len(step)) - (np.cumsum(counts, dtype=np.int64) - counts)[step])
