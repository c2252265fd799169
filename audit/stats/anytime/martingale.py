"""Anytime-valid forms of the score and transform tests.

A gambler bets against the claimed law on every token, with stakes fixed before
the token is drawn; wealth is a nonnegative martingale with mean 1 under the
claim, so by Ville's inequality (1939) it ever reaches 1 / alpha with probability
at most alpha. Scores: stakes on s - E_p s of both signs and many sizes
(Waudby-Smith and Ramdas 2024, section 4.4, as a mixture). Transforms: densities
1 + l . phi(u) with Legendre polynomials phi, a fixed set and one that follows
the data so far. Exact, no asymptotics. Assumes that the score's conditional
mean is correct, or that u is uniform given the past. Cost: O(n) per bet and O(n)
memory. For named faults see alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from audit.stats.pit import DEGREES, legendre
from engine.core.types import Floats

SIZES = 2.0 ** np.arange(-6.0, 5.0)
"""Stakes on a score, per range of the score, before they are capped."""
CAP = 0.9
"""Largest share of the wealth at stake."""
TILTS = (0.03, 0.1, 0.3, 0.9)
SHRINKAGE = 50.0
"""Weight of the adaptive density's prior, as a count of uniform numbers."""
_LARGEST = np.sqrt(2.0 * np.arange(1, DEGREES + 1) + 1.0)
"""[4] the largest absolute value of each polynomial on [0, 1]."""


@dataclass(frozen=True, slots=True)
class AnytimeTest:
    """Log wealth after `n` numbers, its maximum over time, and p = exp(-maximum), valid at any stopping time."""

    n: int
    log_final: float
    log_max: float
    p: float
    crossing: int | None
    """Count of numbers when wealth first reached 1 / alpha; None if it did not."""
    leader: str
    """The bet with the largest final wealth."""


@dataclass(frozen=True, slots=True)
class _Bet:
    name: str
    weight: float
    path: Floats


def score_process(score: Floats, mean: Floats, low: float, high: float, alpha: float = 0.01) -> AnytimeTest:
    """Judge `score` [n] in [`low`, `high`] against its mean given the past, `mean` [n], in both directions."""
    outside = len(score) and not (np.min(score) >= low and np.max(score) <= high)
    if outside or (len(mean) and not (np.min(mean) >= low and np.max(mean) <= high)):
        raise ValueError(f"scores or their means do not lie in [{low}, {high}]")
    return _mixture(_score_bets(score - mean, mean - low, high - mean, high - low), len(score), alpha)


def transform_process(u: Floats, alpha: float = 0.01) -> AnytimeTest:
    """Judge that `u` [n] in [0, 1] are uniform given the past."""
    return _mixture(_transform_bets(legendre(u)), len(u), alpha)


def _score_bets(gain: Floats, below: Floats, above: Floats, width: float) -> Iterator[_Bet]:
    """Stakes l on `gain` with 1 + l gain >= 1 - CAP; `below` and `above` are the room on each side of the mean."""
    weight = 1.0 / (2 * len(SIZES))
    for side, sign, room in (("high", 1.0, below), ("low", -1.0, above)):
        limit = np.divide(CAP, room, out=np.full_like(room, np.inf), where=room > 0)
        for size in SIZES:
            stake = np.minimum(size / width, limit)
            yield _Bet(f"too {side}, stake {size:g}", weight, np.cumsum(np.log1p(sign * stake * gain)))


def _transform_bets(phi: Floats) -> Iterator[_Bet]:
    yield _Bet("density so far", 0.5, np.cumsum(np.log1p(np.sum(_followed(phi) * phi, axis=1))))
    weight = 0.5 / (2 * DEGREES * len(TILTS))
    for degree in range(DEGREES):
        shape = phi[:, degree] / _LARGEST[degree]
        for tilt in (*TILTS, *(-each for each in TILTS)):
            yield _Bet(f"degree {degree + 1}, tilt {tilt:g}", weight, np.cumsum(np.log1p(tilt * shape)))


def _followed(phi: Floats) -> Floats:
    """[n, 4] coefficients of the density estimated from earlier rows, shrunk and kept nonnegative."""
    counts = np.arange(len(phi))[:, None]
    found = (np.cumsum(phi, axis=0) - phi) / (counts + SHRINKAGE)
    reach = np.sum(np.abs(found) * _LARGEST, axis=1, keepdims=True)
    return np.asarray(found * np.minimum(1.0, CAP / np.maximum(reach, CAP)))


def _mixture(bets: Iterable[_Bet], n: int, alpha: float) -> AnytimeTest:
    """The weighted average of the bets' wealth over time."""
    if n == 0:
        return AnytimeTest(0, 0.0, 0.0, 1.0, None, "")
    total, best, leader = np.full(n, -np.inf), -math.inf, ""
    for bet in bets:
        total = np.logaddexp(total, bet.path + math.log(bet.weight))
        if bet.path[-1] > best:
            best, leader = float(bet.path[-1]), bet.name
    crossed = np.flatnonzero(total >= -math.log(alpha))
    log_max = max(0.0, float(np.max(total)))
    first = int(crossed[0]) + 1 if len(crossed) else None
    return AnytimeTest(n, float(total[-1]), log_max, math.exp(-log_max), first, leader)
