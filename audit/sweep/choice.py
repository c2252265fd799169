"""Recommends a draft length from measured speed-ups.

Medians with distribution-free intervals, from order statistics.

The j-th smallest and j-th largest of n independent values hold the median with probability 1 - 2 P(Binomial(n, 1/2) <
j), whatever the distribution (David and Nagaraja, Order Statistics, section 7.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from audit.stats.laws import binomial_cdf

LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median between two order statistics; `coverage` is the probability that they contain the true median."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], level: float = LEVEL) -> MedianInterval:
    """The shortest symmetric pair of order statistics that covers with at least `level`.

    Fewer than six values cannot reach 0.95; the interval is then the smallest and
    the largest value, and `coverage` states its coverage.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered, n = sorted(values), len(values)
    rank = next((j for j in range((n + 1) // 2, 1, -1) if coverage(n, j) >= level), 1)
    return MedianInterval(float(np.median(ordered)), ordered[rank - 1], ordered[n - rank], coverage(n, rank))


def coverage(n: int, rank: int) -> float:
    """Probability that the rank-th smallest and rank-th largest of n values hold the median; rank from 1."""
    return float(1.0 - 2.0 * binomial_cdf(rank - 1, n, 0.5)) if 2 * rank <= n else 0.0


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

    `gamma` had the most tokens per second. `confirmed` is its speed-up over plain decoding in separate rounds. `alike`
    lists the other lengths whose paired ratio to it does not exclude 1.
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
