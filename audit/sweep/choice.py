"""Recommends a draft length from measured speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from audit.sweep.intervals import MedianInterval, median_interval

ENOUGH: Final = 0.9
"""Minimum coverage of a deciding interval; five rounds reach 0.94."""


class Advice(StrEnum):
    """The recommendation of a sweep."""

    SPECULATE = "speculate"
    PLAIN = "do not speculate"
    NO_DIFFERENCE = "no difference shown"
    TOO_FEW_ROUNDS = "too few rounds to say"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation.

    `gamma` had the most tokens per second. `confirmed` is its speed-up over plain
    decoding in separate rounds. `alike` lists the other lengths whose paired ratio
    to it does not exclude 1.
    """

    advice: Advice
    gamma: int
    confirmed: MedianInterval
    alike: tuple[int, ...]


def fastest(rates: Mapping[int, Sequence[float]]) -> int:
    """The draft length with the largest median rate, the shortest among equals. rates: tokens/s by round."""
    return max(sorted(rates), key=lambda gamma: float(np.median(rates[gamma])))


def alike(rates: Mapping[int, Sequence[float]], chosen: int) -> tuple[int, ...]:
    """Lengths that the rounds cannot distinguish from `chosen`."""
    ratios = {gamma: median_interval(paired(own, rates[chosen])) for gamma, own in rates.items() if gamma != chosen}
    return tuple(sorted(gamma for gamma, ratio in ratios.items() if ratio.low <= 1.0 <= ratio.high))


def advise(confirmed: MedianInterval) -> Advice:
    """The advice that a speed-up over plain decoding supports."""
    if confirmed.coverage < ENOUGH:
        return Advice.TOO_FEW_ROUNDS
    if confirmed.low > 1.0:
        return Advice.SPECULATE
    return Advice.PLAIN if confirmed.high < 1.0 else Advice.NO_DIFFERENCE


def paired(rates: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Ratios round by round."""
    return [own / other for own, other in zip(rates, reference, strict=True)]
