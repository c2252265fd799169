"""p of a row for the recorder: the second half of `engine.sampling.transforms.transform`.

Rows of large vocabularies take another way to the same numbers, up to rounding: an exponential with vector
instructions, and no copies. It costs half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, SamplingParams
from engine.sampling.transforms import log_sum_exp, one_hot, softmax, truncate

WIDE: Final = 2**14
"""Rows of fewer tokens are read as the engine reads them, bit by bit."""
CHUNKS: Final = 64
CROWDED: Final = 64
"""So many times the wanted entries are as large as the smallest of them: sorting them would cost more."""


@dataclass(frozen=True, slots=True)
class RowLaw:
    """p [V], and the log of the summed exponentials of scores / temperature (temperature 1 if greedy)."""

    p: Floats
    lse: float


def law_of(scores: NDArray[np.floating[Any]], sampling: SamplingParams) -> RowLaw:
    """The law of a row of scores, which have bias, masks and penalties in them."""
    if len(scores) >= WIDE:
        return _wide(scores, sampling)
    wide = scores.astype(np.float64)
    scaled = wide if sampling.greedy else wide / sampling.temperature
    lse = float(log_sum_exp(scaled[None])[0])
    if sampling.greedy:
        return RowLaw(one_hot(int(np.argmax(wide)), len(wide)), lse)
    return RowLaw(truncate(softmax(scaled), sampling), lse)


def _wide(scores: NDArray[np.floating[Any]], sampling: SamplingParams) -> RowLaw:
    p = scores.astype(np.float64)
    best = int(scores.argmax())
    if not sampling.greedy and sampling.temperature != 1.0:
        p /= sampling.temperature
    largest = float(p[best])
    p -= largest
    exponentials(p)
    total = float(p.sum())
    lse = largest + float(np.log(total))
    if sampling.greedy:
        return RowLaw(one_hot(best, len(p)), lse)
    p /= total
    whole = sampling.min_p == 0 and sampling.top_p == 1 and not 0 < sampling.top_k < len(p)
    return RowLaw(p if whole else truncate(p, sampling), lse)


def exponentials(values: Floats) -> None:
    """The exponentials of many numbers, in place."""
    import torch

    tensor = torch.from_numpy(values)
    torch.exp(tensor, out=tensor)


def largest(row: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest entries, descending, lower ids first among equals; all ids if there are fewer."""
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    if len(row) >= WIDE:
        near = _candidates(row, count)
        if count <= len(near) <= CROWDED * count:
            return near[np.argsort(-row[near], kind="stable")[:count]]
    least = np.partition(row, -count)[-count]
    above = np.flatnonzero(row > least)
    ties = np.flatnonzero(row == least)[: count - len(above)]
    # both are in id order, and ties are the smallest, so a stable sort keeps the order among equals
    return np.concatenate([above[np.argsort(-row[above], kind="stable")], ties])


def _candidates(row: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Ids in order of all entries that are as large as the `count`-th largest maximum of a chunk: those wanted, and
    few more.
    """
    whole = len(row) // CHUNKS * CHUNKS
    maxima = row[:whole].reshape(CHUNKS, -1).max(axis=0)
    return np.flatnonzero(row >= np.partition(maxima, -count)[-count])
