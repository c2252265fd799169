"""Medians with distribution-free intervals, from order statistics.

The j-th smallest and j-th largest of n independent values hold the median with
probability 1 - 2 P(Binomial(n, 1/2) < j), whatever the distribution (David and
Nagaraja, Order Statistics, section 7.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
