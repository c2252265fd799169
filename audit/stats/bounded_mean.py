"""Upper and lower confidence bounds of a mean of numbers in [0, 1], with the count fixed beforehand.

Empirical Bernstein (Maurer and Pontil 2009, theorem 4) uses the sample variance; betting (Waudby-Smith and Ramdas 2024,
section 4) rejects every mean against which a gambler would have won, and is tighter almost everywhere. Each function is
one-sided. Assumes independent numbers with a common mean, such as positions drawn at random; betting needs only that
the mean given the past is constant. Cost: linear; betting passes over the data about a dozen times. Not valid under
interim looks, except `drifting_mean` and `drifting_lower`: a mixture of fixed bets in the empirical Bernstein
supermartingale (Howard et al. 2021, theorem 4), which bounds the average of the means given the past, needs no
independence and holds at every stopping time.
"""

import math

import numpy as np
import scipy

from audit.stats.binomial import Interval
from audit.stats.power import bound_width
from engine.core.types import Floats

LARGEST_BET = 0.75
"""Largest share of the wealth at stake: with 1 a single number could end the game."""
DRIFT_BETS = 0.9 * 2.0 ** -np.arange(14.0)
"""Bets of `drifting_mean`: from a handful of numbers to about 10^8."""
_PRECISION = 1e-2
_SMALLEST = 1e-12


def bernstein_upper(x: Floats, confidence: float = 0.99) -> float:
    """Upper bound of the mean of `x` [n] by its sample variance; 1 for fewer than two numbers."""
    _require_unit(x)
    if len(x) < 2:
        return 1.0
    return min(1.0, float(np.mean(x)) + bound_width(len(x), float(np.var(x, ddof=1)), 1.0 - confidence))


def betting_upper(x: Floats, confidence: float = 0.99) -> float:
    """Upper bound of the mean of `x` [n] by betting that the mean is smaller; 1 without numbers.

    Against each mean m a gambler stakes l_t on every number and ends with prod(1 + l_t (m - x_t)). If the mean is m or
    more this is a nonnegative supermartingale, which reaches 1 / (1 - confidence) with probability at most 1 -
    confidence. Wealth grows with m, so the smallest rejected m is found by bisection; the answer is on the rejected
    side, and its distance from the sample mean is at most 1 % too large.
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
