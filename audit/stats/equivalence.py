"""Equivalence: evidence that a difference is small, not merely absence of evidence that it is large.

Two one-sided tests (Schuirmann 1987): equivalence within a margin is shown at
level alpha when both "the difference is the margin or more" and "minus the
margin or less" are rejected at alpha, without correction, since both must be. This
is equivalent to a 1 - 2 alpha interval inside the margin. For paired means the
one-sided tests are cluster-robust t, BCa cluster bootstrap, or sign flips; for
paired proportions Tango's score (1998); for independent proportions the score
of Farrington and Manning (1990). Assumes independent prompts, and for sign flips
differences that are symmetric about the margin's end under its null. `decide`
turns any bound pair into one of three decisions. Cost: that of the interval.
The caller must fix the margin before seeing the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.clusters import REPLICATES, mean_interval, ratio_bootstrap
from audit.stats.laws import normal_cdf, normal_ppf, normal_sf, t_sf
from audit.stats.paired import FLIPS, PairCounts, sign_flip, tango_lower, tango_score, tango_upper
from engine.core.types import Floats


class EquivalenceDecision(StrEnum):
    """The decision that a pair of bounds allows."""

    CERTIFIED = "certified"
    """The whole interval lies within the margin."""
    FAULT = "fault"
    """The whole interval lies outside the margin."""
    INCONCLUSIVE = "inconclusive"
    """The interval crosses the margin."""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """`low` and `high` are one-sided bounds at 1 - alpha each.

    `p` is the larger of the two one-sided p-values, NaN if the method has
    none; `p <= alpha` and certified agree.
    """

    estimate: float
    low: float
    high: float
    margin: float
    p: float
    decision: EquivalenceDecision


@dataclass(frozen=True, slots=True)
class SuccessCounts:
    """Successes in independent trials."""

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials or self.trials == 0:
            raise ValueError(f"{self.successes} successes in {self.trials} trials")

    @property
    def rate(self) -> float:
        """Successes per trial."""
        return self.successes / self.trials


def decide(low: float, high: float, margin: float) -> EquivalenceDecision:
    """Decide on a signed difference bounded by [low, high], against plus or minus `margin`."""
    if not low <= high:
        raise ValueError(f"bounds {low} and {high} are not in order")
    if -margin <= low and high <= margin:
        return EquivalenceDecision.CERTIFIED
    return EquivalenceDecision.FAULT if low > margin or high < -margin else EquivalenceDecision.INCONCLUSIVE


def decide_distance(lower: float, upper: float, largest: float) -> EquivalenceDecision:
    """Decide on a distance, 0 or more, between a lower and an upper bound, against the `largest` allowed."""
    if not lower <= upper:
        raise ValueError(f"bounds {lower} and {upper} are not in order")
    if upper <= largest:
        return EquivalenceDecision.CERTIFIED
    return EquivalenceDecision.FAULT if lower > largest else EquivalenceDecision.INCONCLUSIVE


def tost_means(differences: Floats, cluster: NDArray[np.int64], margin: float, alpha: float = 0.01) -> Equivalence:
    """Mean of paired `differences` [n] within the margin, by the cluster-robust t law."""
    found = mean_interval(differences, cluster, 1.0 - 2.0 * alpha)
    room = margin - abs(found.estimate)
    if not 0.0 < found.se < np.inf:
        p = 0.0 if found.se == 0.0 and room > 0 else 1.0
    else:
        p = float(t_sf(room / found.se, found.clusters - 1))
    return Equivalence(found.estimate, found.low, found.high, margin, p, decide(found.low, found.high, margin))


def tost_means_bootstrap(
    differences: Floats,
    cluster: NDArray[np.int64],
    margin: float,
    generator: np.random.Generator,
    alpha: float = 0.01,
    replicates: int = REPLICATES,
) -> Equivalence:
    """As `tost_means`, from the BCa cluster bootstrap; an interval only, without p."""
    ones = np.ones(len(differences))
    found = ratio_bootstrap(differences, ones, cluster, generator, 1.0 - 2.0 * alpha, replicates)
    decision = decide(found.low, found.high, margin)
    return Equivalence(found.estimate, found.low, found.high, margin, math.nan, decision)


def tost_means_sign_flip(
    differences: Floats,
    cluster: NDArray[np.int64],
    margin: float,
    generator: np.random.Generator,
    alpha: float = 0.01,
    flips: int = FLIPS,
) -> Equivalence:
    """As `tost_means`, by flipping the signs of the distances to either end of the margin.

    A fault is shown by the opposite one-sided tests at the same ends. Sign flips
    give no interval: the bounds are the ends that were rejected, else infinite.
    """
    differences = np.asarray(differences, dtype=np.float64)
    sides = [
        sign_flip(sign * differences + shift, cluster, generator, "greater", flips).p
        for sign, shift in ((1.0, margin), (-1.0, margin), (1.0, -margin), (-1.0, -margin))
    ]
    above_lower, below_upper, above_upper, below_lower = (p <= alpha for p in sides)
    low = margin if above_upper else -margin if above_lower else -math.inf
    high = -margin if below_lower else margin if below_upper else math.inf
    decision = EquivalenceDecision.FAULT if above_upper or below_lower else decide(low, high, margin)
    return Equivalence(float(np.mean(differences)), low, high, margin, max(sides[:2]), decision)


def tost_paired_proportions(pairs: PairCounts, margin: float, alpha: float = 0.01) -> Equivalence:
    """Loss of passes, worse minus better, within the margin either way, by Tango's score."""
    swapped = PairCounts(pairs.n, pairs.better, pairs.worse)
    if pairs.n == 0:
        return Equivalence(0.0, -1.0, 1.0, margin, 1.0, decide(-1.0, 1.0, margin))
    p = max(float(normal_cdf(tango_score(each, margin))) for each in (pairs, swapped))
    low, high = tango_lower(pairs, 1.0 - alpha), tango_upper(pairs, 1.0 - alpha)
    return Equivalence((pairs.worse - pairs.better) / pairs.n, low, high, margin, p, decide(low, high, margin))


def tost_proportions(first: SuccessCounts, second: SuccessCounts, margin: float, alpha: float = 0.01) -> Equivalence:
    """Rate of `second` minus that of `first`, independent samples, within the margin, by the score test."""
    critical = float(normal_ppf(1.0 - alpha))
    below = float(normal_cdf(difference_score(first, second, margin)))
    above = float(normal_sf(difference_score(first, second, -margin)))
    estimate = second.rate - first.rate
    high = _difference_upper(first, second, critical)
    low = -_difference_upper(second, first, critical)
    return Equivalence(estimate, low, high, margin, max(below, above), decide(low, high, margin))


def difference_score(first: SuccessCounts, second: SuccessCounts, difference: float) -> float:
    """Standardised (rate of `second` - rate of `first`) - `difference`, both rates fitted under `difference`."""
    base = _restricted_rate(first, second, difference)
    moved = min(1.0, max(0.0, base + difference))
    variance = base * (1.0 - base) / first.trials + moved * (1.0 - moved) / second.trials
    deviation = second.rate - first.rate - difference
    if variance <= 0.0:
        return 0.0 if deviation == 0 else math.copysign(math.inf, deviation)
    return deviation / math.sqrt(variance)


def _difference_upper(first: SuccessCounts, second: SuccessCounts, critical: float) -> float:
    start, end = second.rate - first.rate, 1.0 - 1e-9
    if start >= end or difference_score(first, second, end) > -critical:
        return 1.0
    return float(
        scipy.optimize.brentq(lambda each: difference_score(first, second, each) + critical, start, end, xtol=1e-10)
    )


def _restricted_rate(first: SuccessCounts, second: SuccessCounts, difference: float) -> float:
    """The rate of `first` that maximises the likelihood if that of `second` is larger by `difference`.

    The likelihood equation is a cubic; its root in closed form is Miettinen and Nurminen's (1985).
    """
    trials, successes = first.trials + second.trials, first.successes + second.successes
    square = (second.trials + 2 * first.trials) * difference - trials - successes
    linear = (first.trials * difference - trials - 2 * first.successes) * difference + successes
    constant = first.successes * difference * (1.0 - difference)
    shift = square / (3.0 * trials)
    half = shift**3 - shift * linear / (2.0 * trials) + constant / (2.0 * trials)
    size = math.copysign(math.sqrt(max(0.0, shift**2 - linear / (3.0 * trials))), half)
    angle = math.acos(min(1.0, max(-1.0, half / size**3))) if size**3 else 0.0
    root = 2.0 * size * math.cos((math.pi + angle) / 3.0) - shift
    return min(max(root, 0.0, -difference), 1.0, 1.0 - difference)
