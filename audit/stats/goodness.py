"""Goodness of fit of counts to known laws.

Pearson's chi-square or the likelihood ratio G of counts whose total is fixed. The
p-value is exact by enumeration where all tables of that total are few, (1 + b) / (1
+ B) by simulation below 50 draws or where pooling leaves one cell, and the
chi-square limit with the small cells pooled otherwise (expectation below 5: Cochran
1954). Many tables are combined by the sum of their statistics; given the totals the
tables are independent and each has its own law, so statistics and degrees of
freedom add up. A count in a cell of probability 0 is impossible and has p = 0.
Assumes that totals were fixed in advance, or at least not by the outcomes; visits
to a context of a running text meet this only approximately. Cost: O(cells) per
table, times the enumerated or simulated tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.laws import chi2_sf, gamma_sf
from engine.core.types import Floats

Ints = NDArray[np.int64]
Kind = Literal["pearson", "g"]

LEAST_EXPECTED = 5.0
SIMULATED_BELOW = 50
ENUMERATED = 50_000
REPLICATES = 9999


class Method(StrEnum):
    """Method behind a p-value."""

    EXACT = "exact"
    SIMULATED = "simulated"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Goodness:
    """`statistic` and `degrees` belong to the judged table, which is pooled if the limit is used."""

    n: int
    statistic: float
    degrees: int
    p: float
    method: Method


@dataclass(frozen=True, slots=True)
class PooledGoodness:
    """Sum of pooled Pearson statistics over the `tables` that kept two cells or more."""

    tables: int
    n: int
    statistic: float
    degrees: int
    p: float


@dataclass(frozen=True, slots=True)
class _Pooled:
    """[T, C + 1] counts and expectations, 0 in cells that were pooled away; the last column holds the pool."""

    counts: Floats
    expected: Floats


def goodness_of_fit(
    counts: Ints, law: Floats, generator: np.random.Generator, kind: Kind = "pearson", replicates: int = REPLICATES
) -> Goodness:
    """Judge `counts` [C] against the probabilities `law` [C], which add up to 1."""
    _require_table(counts, law)
    n = int(counts.sum())
    if np.any(counts[law == 0] > 0):
        return Goodness(n, np.inf, int(np.sum(law > 0)) - 1, 0.0, Method.EXACT)
    counts, law = counts[law > 0], law[law > 0]
    observed = float(_statistic(counts[None].astype(np.float64), n * law, kind)[0])
    if n == 0 or len(law) < 2:
        return Goodness(n, 0.0, 0, 1.0, Method.EXACT)
    if math.comb(n + len(law) - 1, len(law) - 1) <= ENUMERATED:
        return Goodness(n, observed, len(law) - 1, _enumerated_p(observed, n, law, kind), Method.EXACT)
    pooled = _pool(counts[None].astype(np.float64), n * law[None])
    kept = pooled.expected[0] > 0
    if n < SIMULATED_BELOW or kept.sum() < 2:
        p = _simulated_p(observed, n, law, kind, generator, replicates)
        return Goodness(n, observed, len(law) - 1, p, Method.SIMULATED)
    statistic = float(_statistic(pooled.counts[:, kept], pooled.expected[0, kept], kind)[0])
    degrees = int(kept.sum()) - 1
    return Goodness(n, statistic, degrees, float(chi2_sf(statistic, degrees)), Method.LIMIT)


def combined_fit(counts: Ints, laws: Floats) -> PooledGoodness:
    """Judge many small tables at once: `counts` [T, C] against `laws` [T, C], each row a law.

    The sum has mean `degrees` exactly; its variance is known exactly too, and
    the p-value is from the gamma law with both. The limit's variance, 2 per
    degree, is slightly off in every small table, and always in the same direction.
    """
    if counts.shape != laws.shape:
        raise ValueError(f"counts of shape {counts.shape} against laws of shape {laws.shape}")
    if np.any(counts[laws == 0] > 0):
        return PooledGoodness(len(counts), int(counts.sum()), np.inf, 0, 0.0)
    totals = counts.sum(axis=1)
    pooled = _pool(counts.astype(np.float64), totals[:, None] * laws)
    cells = np.sum(pooled.expected > 0, axis=1)
    used = cells > 1
    observed, expected, totals, cells = pooled.counts[used], pooled.expected[used], totals[used], cells[used]
    if not len(totals):
        return PooledGoodness(0, 0, 0.0, 0, 1.0)
    filled = np.where(expected > 0, expected, 1.0)
    statistic = float(np.sum((observed - expected) ** 2 / filled))
    degrees = int(np.sum(cells - 1))
    inverse = np.sum(np.where(expected > 0, 1.0 / filled, 0.0), axis=1)
    # Haldane 1937: 2 (k - 1) + (sum of 1 / p - k^2 - 2 k + 2) / n per table
    variance = float(np.sum(2.0 * (cells - 1) + inverse - (cells**2 + 2 * cells - 2) / totals))
    p = float(gamma_sf(statistic, degrees**2 / variance, scale=variance / degrees))
    return PooledGoodness(len(totals), int(totals.sum()), statistic, degrees, p)


def _pool(counts: Floats, expected: Floats) -> _Pooled:
    """Pool the small cells [T, C] of each row; a pool that is still small joins the row's smallest large cell."""
    large = expected >= LEAST_EXPECTED
    kept_counts, kept = np.where(large, counts, 0.0), np.where(large, expected, 0.0)
    rest_counts, rest = (counts - kept_counts).sum(axis=1), (expected - kept).sum(axis=1)
    joins = np.flatnonzero((rest < LEAST_EXPECTED) & large.any(axis=1))
    smallest = np.where(large, expected, np.inf).argmin(axis=1)[joins]
    kept_counts[joins, smallest] += rest_counts[joins]
    kept[joins, smallest] += rest[joins]
    rest_counts[joins], rest[joins] = 0.0, 0.0
    return _Pooled(np.column_stack([kept_counts, rest_counts]), np.column_stack([kept, rest]))


def _statistic(counts: Floats, expected: Floats, kind: Kind) -> Floats:
    """[T] of tables [T, C] with the same expectations [C]."""
    if not np.all(expected > 0):
        return np.zeros(len(counts))
    if kind == "g":
        return np.asarray(2.0 * np.sum(scipy.special.xlogy(counts, counts / expected), axis=1))
    return np.asarray(np.sum((counts - expected) ** 2 / expected, axis=1))


def _enumerated_p(observed: float, n: int, law: Floats, kind: Kind) -> float:
    tables = np.array(list(_compositions(n, len(law))), dtype=np.float64)
    weights = np.exp(
        scipy.special.gammaln(n + 1) - scipy.special.gammaln(tables + 1).sum(axis=1) + tables @ np.log(law)
    )
    reached = _statistic(tables, n * law, kind) >= _bar(observed)
    return min(1.0, float(np.sum(weights[reached])))


def _simulated_p(
    observed: float, n: int, law: Floats, kind: Kind, generator: np.random.Generator, replicates: int
) -> float:
    tables = generator.multinomial(n, law / law.sum(), size=replicates).astype(np.float64)
    above = int(np.sum(_statistic(tables, n * law, kind) >= _bar(observed)))
    return (1 + above) / (1 + replicates)


def _bar(observed: float) -> float:
    """Threshold for tables as extreme as the observed one, with a tolerance for rounding."""
    return observed - 1e-9 * max(1.0, observed)


def _compositions(n: int, cells: int) -> Iterator[tuple[int, ...]]:
    """All tables of n draws over the cells."""
    if cells == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for others in _compositions(n - first, cells - 1):
            yield (first, *others)


def _require_table(counts: Ints, law: Floats) -> None:
    if counts.shape != law.shape or counts.ndim != 1:
        raise ValueError(f"counts of shape {counts.shape} against a law of shape {law.shape}")
    if np.any(law < 0) or abs(float(law.sum()) - 1.0) > 1e-6:
        raise ValueError(f"a law's probabilities add up to 1, not {float(law.sum())}")
