"""Upper and lower confidence bounds of a mean of numbers in [0, 1], with the count fixed beforehand.

Hoeffding 1963 uses the count only; empirical Bernstein (Maurer and Pontil
2009, theorem 4) uses the sample variance; betting (Waudby-Smith and Ramdas
2024, section 4) rejects every mean against which a gambler would have won, and
is the tightest of the three almost everywhere. Each function is one-sided.
Assumes independent numbers with a common mean, such as positions drawn at
random; betting needs only that the mean given the past is constant. Cost:
linear; betting passes over the data about a dozen times. Not valid under interim
looks: see sequences.
"""

from __future__ import annotations

import math

import numpy as np

from audit.stats.binomial import Interval
from engine.core.types import Floats

LARGEST_BET = 0.75
"""Largest share of the wealth at stake: with 1 a single number could end the game."""
_PRECISION = 1e-2
_SMALLEST = 1e-12


def hoeffding_upper(x: Floats, confidence: float = 0.99) -> float:
    """Upper bound of the mean of `x` [n]; 1 without numbers."""
    _require_unit(x)
    if len(x) == 0:
        return 1.0
    return min(1.0, float(np.mean(x)) + math.sqrt(-math.log(1.0 - confidence) / (2 * len(x))))


def hoeffding_lower(x: Floats, confidence: float = 0.99) -> float:
    """Lower bound of the mean of `x` [n]; 0 without numbers."""
    return 1.0 - hoeffding_upper(1.0 - x, confidence)


def bernstein_upper(x: Floats, confidence: float = 0.99) -> float:
    """Upper bound of the mean of `x` [n] by its sample variance; 1 for fewer than two numbers."""
    _require_unit(x)
    n = len(x)
    if n < 2:
        return 1.0
    log_term = math.log(2.0 / (1.0 - confidence))
    spread = math.sqrt(2.0 * float(np.var(x, ddof=1)) * log_term / n)
    return min(1.0, float(np.mean(x)) + spread + 7.0 * log_term / (3.0 * (n - 1)))


def bernstein_lower(x: Floats, confidence: float = 0.99) -> float:
    """Lower bound of the mean of `x` [n] by its sample variance; 0 for fewer than two numbers."""
    return 1.0 - bernstein_upper(1.0 - x, confidence)


def betting_upper(x: Floats, confidence: float = 0.99) -> float:
    """Upper bound of the mean of `x` [n] by betting that the mean is smaller; 1 without numbers.

    Against each mean m a gambler stakes l_t on every number and ends with
    prod(1 + l_t (m - x_t)). If the mean is m or more this is a nonnegative
    supermartingale, which reaches 1 / (1 - confidence) with probability at most
    1 - confidence. Wealth grows with m, so the smallest rejected m is found by
    bisection; the answer is on the rejected side, and its distance from the sample
    mean is at most 1 % too large.
    """
    _require_unit(x)
    target = -math.log(1.0 - confidence)
    if len(x) == 0:
        return 1.0
    bets, mean = _bets(x, target), float(np.mean(x))
    # a bracket near the answer saves passes over the data; if it is wrong, search the whole interval
    guess = 2.0 * bernstein_upper(x, confidence) - mean
    high = guess if guess < 1.0 and _best_wealth(x, bets, guess) >= target else 1.0
    if high == 1.0 and _best_wealth(x, bets, high) < target:
        return 1.0
    low = 0.0 if _best_wealth(x, bets, mean) >= target else mean
    while high - low > max(_PRECISION * abs(high - mean), _SMALLEST):
        middle = (low + high) / 2.0
        if _best_wealth(x, bets, middle) >= target:
            high = middle
        else:
            low = middle
    return high


def betting_lower(x: Floats, confidence: float = 0.99) -> float:
    """Lower bound of the mean of `x` [n] by betting that the mean is larger; 0 without numbers."""
    return 1.0 - betting_upper(1.0 - x, confidence)


def betting_interval(x: Floats, confidence: float = 0.99) -> Interval:
    """Two-sided, half of the error probability on each side."""
    half = 0.5 + confidence / 2.0
    return Interval(betting_lower(x, half), betting_upper(x, half))


def _bets(x: Floats, target: float) -> Floats:
    """[n] stakes, each from the numbers before it: large if they vary little."""
    counts = np.arange(1, len(x) + 1)
    means = (0.5 + np.cumsum(x)) / (counts + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (counts + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    return np.asarray(np.sqrt(2.0 * target / (before * len(x))))


def _best_wealth(x: Floats, bets: Floats, mean: float) -> float:
    """The largest log wealth over time, against `mean`."""
    wealth = mean - x
    wealth *= np.minimum(bets, LARGEST_BET / (1.0 - mean)) if mean < 1.0 else bets
    np.log1p(wealth, out=wealth)
    return float(np.max(np.cumsum(wealth, out=wealth)))


def _require_unit(x: Floats) -> None:
    if len(x) and not (np.min(x) >= 0.0 and np.max(x) <= 1.0):
        raise ValueError(f"numbers from {np.min(x)} to {np.max(x)} do not lie in [0, 1]")
