"""p of a row for the recorder: the second half of `engine.sampling.transforms.transform`.

Rows of large vocabularies take another way to the same numbers, up to rounding: an exponential with vector
instructions, and no copies. It costs half. Their weights stay undivided: the sum of all is the divisor.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, Protocol, RecordLevel, SamplingParams
from engine.sampling.transforms import log_sum_exp, one_hot, softmax, truncate

if TYPE_CHECKING:
    from engine.record.trace import TraceHeader

WIDE: Final = 2**14
"""Rows of fewer tokens are read as the engine reads them, bit by bit."""
ROWS: Final = 64
"""A wide row is searched as a table of so many rows."""
CROWDED: Final = 64
"""Columns per wanted entry above which most entries are ties."""
BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class RowHeader:
    """The part of a trace header that an engine's process gets, to reduce rows where they are."""

    level: RecordLevel
    protocol: Protocol
    vocabulary: int
    sampling: SamplingParams
    prompt: tuple[int, ...]
    eos_ids: tuple[int, ...]
    stream: int
    coupled_draft: bool = field(default=False, kw_only=True)


RowTerms: TypeAlias = "TraceHeader | RowHeader"


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


@dataclass(frozen=True, slots=True)
class RowLaw:
    """A law p [V] as weights: p is `weights` / `mass`."""

    sums: RowSums
    """The weights, with their sums."""
    mass: float
    lse: float
    """Log of the summed exponentials of scores / temperature (temperature 1 if greedy)."""
    ordered: bool
    """True if p was not truncated, so that the largest scores have the largest p."""

    @property
    def weights(self) -> Floats:
        """[V] p times `mass`."""
        return self.sums.row

    @property
    def p(self) -> Floats:
        """[V] the law."""
        return self.weights / self.mass


def law_of(scores: NDArray[np.floating[Any]], sampling: SamplingParams, best: int) -> RowLaw:
    """The law of a row of scores, which have bias, masks and penalties in them; `best` is the largest one's id."""
    if len(scores) >= WIDE:
        return _wide(scores, sampling, best)
    wide = scores.astype(np.float64)
    scaled = wide if sampling.greedy else wide / sampling.temperature
    lse = float(log_sum_exp(scaled[None])[0])
    if sampling.greedy:
        return _normalised(one_hot(best, len(wide)), lse)
    return _normalised(truncate(softmax(scaled), sampling), lse)


def _normalised(p: Floats, lse: float) -> RowLaw:
    return RowLaw(RowSums.of(p), 1.0, lse, ordered=False)


def _wide(scores: NDArray[np.floating[Any]], sampling: SamplingParams, best: int) -> RowLaw:
    largest = float(scores[best])
    if sampling.greedy or sampling.temperature == 1.0:
        weights = np.subtract(scores, largest, dtype=np.float64)
    else:
        weights = scores / np.float64(sampling.temperature)
        largest = float(weights[best])
        weights -= largest
    exponentials(weights)
    sums = RowSums.of(weights)
    lse = largest + float(np.log(sums.total))
    if sampling.greedy:
        return _normalised(one_hot(best, len(weights)), lse)
    whole = sampling.min_p == 0 and sampling.top_p == 1 and not 0 < sampling.top_k < len(weights)
    if whole:
        return RowLaw(sums, sums.total, lse, ordered=True)
    return _normalised(truncate(weights / sums.total, sampling), lse)


def exponentials(values: Floats) -> None:
    """The exponentials of many numbers, in place: torch's, or numpy's where no torch is; the last bit may differ."""
    try:
        import torch
    except ModuleNotFoundError:
        np.exp(values, out=values)
        return
    tensor = torch.from_numpy(values)
    torch.exp(tensor, out=tensor)


def largest(row: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest entries, descending, lower ids first among equals; all ids if there are fewer."""
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    if len(row) >= WIDE:
        return _largest_of_wide(row, count)
    least = np.partition(row, -count)[-count]
    return _in_order(row, np.flatnonzero(row > least), np.flatnonzero(row == least), count)


def _in_order(
    row: NDArray[np.floating[Any]], above: NDArray[np.int64], ties: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The largest of the entries `above`, then as many `ties`, which are smaller and equal; both are in id order."""
    # a stable sort keeps the order among equals
    ranked = above[np.argsort(-row[above], kind="stable")]
    return np.concatenate([ranked, ties])[:count]


def _largest_of_wide(row: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Entries that are as large as the `count`-th largest maximum of a column: those wanted, and few more."""
    columns = len(row) // ROWS
    cut = columns * ROWS
    table, rest = row[:cut].reshape(ROWS, columns), row[cut:]
    maxima = table.max(axis=0)
    least = np.partition(maxima, -count)[-count]
    wanted = np.flatnonzero(maxima >= least)
    if len(wanted) > CROWDED * count:
        return _in_order(row, np.flatnonzero(row > least), np.flatnonzero(row == least), count)
    at, column = np.nonzero(table[:, wanted] >= least)
    near = np.concatenate([at * columns + wanted[column], cut + np.flatnonzero(rest >= least)])
    return _in_order(row, near, near[:0], count)
