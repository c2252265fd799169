"""Confidence sequences: intervals that hold at all times at once, so stopping at any time is valid.

The module has four. Numbers in [0, 1] with a constant mean: predictable plug-in
empirical Bernstein (Waudby-Smith and Ramdas 2024, theorem 2). Successes with a
constant probability: beta mixture (Robbins 1970). Sub-Gaussian numbers of a known
scale: normal mixture (Robbins 1970; Howard et al. 2021). Numbers whose mean
drifts, as differences of tokens do: a mixture of fixed bets in the empirical
Bernstein supermartingale (Howard et al. 2021, theorem 4), which bounds the
average of the means given the past and needs no independence. Cost: linear; the
beta mixture bisects all times at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.binomial import Interval
from engine.core.types import Floats

LARGEST_BET = 0.75
DRIFT_BETS = 0.9 * 2.0 ** -np.arange(14.0)
"""Bets of `drifting_mean`: from a handful of numbers to about 10^8."""
_BISECTIONS = 50


@dataclass(frozen=True, slots=True)
class Sequence:
    """[n] each: after t numbers the mean lies in [low[t], high[t]], for all t at once."""

    low: Floats
    high: Floats
    confidence: float

    def at(self, count: int) -> Interval:
        """The interval after `count` numbers, at least one."""
        return Interval(float(self.low[count - 1]), float(self.high[count - 1]))


def bounded_mean(x: Floats, confidence: float = 0.99) -> Sequence:
    """Mean of `x` [n] in [0, 1] whose mean given the past is constant. Intervals are intersected over time."""
    if len(x) and not (np.min(x) >= 0.0 and np.max(x) <= 1.0):
        raise ValueError(f"numbers from {np.min(x)} to {np.max(x)} do not lie in [0, 1]")
    counts = np.arange(1, len(x) + 1)
    log_term = math.log(2.0 / (1.0 - confidence))
    means = (0.5 + np.cumsum(x)) / (counts + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (counts + 1)
    before = np.concatenate([[0.25], variances[:-1]])[: len(x)]
    bets = np.minimum(LARGEST_BET, np.sqrt(2.0 * log_term / (before * counts * np.log1p(counts))))
    guesses = np.concatenate([[0.5], means[:-1]])[: len(x)]
    staked = np.cumsum(bets)
    centre = np.cumsum(bets * x) / staked
    half = (log_term + np.cumsum((x - guesses) ** 2 * _psi(bets))) / staked
    return _running(centre - half, centre + half, confidence)


def bernoulli(successes: NDArray[np.bool_], confidence: float = 0.99, prior: float = 0.5) -> Sequence:
    """Probability behind `successes` [n], by a Beta(`prior`, `prior`) mixture. Intervals are intersected over time."""
    counts = np.arange(1, len(successes) + 1, dtype=np.float64)
    hits = np.cumsum(successes, dtype=np.float64)
    evidence = scipy.special.betaln(prior + hits, prior + counts - hits) - scipy.special.betaln(prior, prior)
    needed = evidence + math.log(1.0 - confidence)
    rate = hits / np.maximum(counts, 1.0)
    low = _crossing(hits, counts, needed, np.zeros_like(rate), rate)
    high = _crossing(hits, counts, needed, np.ones_like(rate), rate)
    return _running(low, high, confidence)


def normal_mixture(x: Floats, scale: float, confidence: float = 0.99, planned: int = 1000) -> Sequence:
    """Mean of `x` [n], each sub-Gaussian with `scale` given the past; tightest near `planned` numbers.

    Numbers in [a, b] are sub-Gaussian with scale (b - a) / 2, under any law.
    """
    error = 1.0 - confidence
    intrinsic = scale**2 * np.arange(1, len(x) + 1)
    # near-minimiser of the width at the planned time (Howard et al. 2021, equation 25)
    width = -2.0 * math.log(error)
    mixing = scale**2 * planned / (width + math.log(1.0 + width))
    boundary = np.sqrt((intrinsic + mixing) * np.log((intrinsic + mixing) / (mixing * error**2)))
    counts = np.arange(1, len(x) + 1)
    centre = np.cumsum(x) / counts
    return _running(centre - boundary / counts, centre + boundary / counts, confidence)


def drifting_mean(x: Floats, low: float, high: float, confidence: float = 0.99) -> Interval:
    """Average over t of E[x_t | past], for `x` [n] in [`low`, `high`] under any dependence.

    Valid at every stopping time. The bounded average changes with time, so
    intervals of different times must not be intersected.
    """
    if len(x) == 0:
        return Interval(low, high)
    if not (np.min(x) >= low and np.max(x) <= high):
        raise ValueError(f"numbers from {np.min(x)} to {np.max(x)} do not lie in [{low}, {high}]")
    unit = (x - low) / (high - low)
    half = 0.5 + confidence / 2.0
    below, above = drifting_lower(unit, half), 1.0 - drifting_lower(1.0 - unit, half)
    return Interval(low + (high - low) * below, low + (high - low) * above)


def drifting_lower(x: Floats, confidence: float = 0.99) -> float:
    """One-sided form of `drifting_mean` for `x` [n] in [0, 1]; 0 without numbers."""
    n = len(x)
    if n == 0:
        return 0.0
    sums = np.cumsum(x)
    guesses = np.concatenate([[0.5], (0.5 + sums[:-1]) / np.arange(2, n + 1)])
    spread = float(np.sum((x - guesses) ** 2))
    target = -math.log(1.0 - confidence)

    def excess(deviation: float) -> float:
        logs = DRIFT_BETS * deviation - _psi(DRIFT_BETS) * spread
        return float(scipy.special.logsumexp(logs)) - math.log(len(DRIFT_BETS)) - target

    most = float(sums[-1])
    if excess(most) <= 0.0:
        return 0.0
    # the deviation at which the mixture reaches 1 / error; it rejects larger ones
    return max(0.0, (most - float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-9 * max(1.0, most)))) / n)


def _psi(bets: Floats) -> Floats:
    """-log(1 - l) - l, the cost of a bet per squared surprise."""
    return np.asarray(-np.log1p(-bets) - bets)


def _crossing(hits: Floats, counts: Floats, needed: Floats, outside: Floats, inside: Floats) -> Floats:
    """[n] points between `outside` and `inside` at which the log likelihood of a probability falls to `needed`.

    Each point is on the rejected side, or an end of [0, 1].
    """
    for _ in range(_BISECTIONS):
        middle = (outside + inside) / 2.0
        with np.errstate(divide="ignore"):
            refuted = scipy.special.xlogy(hits, middle) + scipy.special.xlog1py(counts - hits, -middle) <= needed
        outside, inside = np.where(refuted, middle, outside), np.where(refuted, inside, middle)
    return outside


def _running(low: Floats, high: Floats, confidence: float) -> Sequence:
    return Sequence(np.maximum.accumulate(low), np.minimum.accumulate(high), confidence)
