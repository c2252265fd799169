"""Tail probabilities of sums whose first three moments are known, and the bound that they give for predicted events.

`two_sided` uses the Pearson type III law, a shifted gamma with the sum's mean, variance and skewness (Pearson 1895),
and never goes below the normal tail. Above skewness 1 that approximation is unreliable, and `freedman`, a bound that
holds for every martingale with bounded steps (Freedman 1975, theorem 1.6), is used by the callers. Cost: constant.

`event_deviation`: each event has a probability that is known before its trial, so the sum of (happened - probability)
is such a martingale, with a known variance. The frequency of an event under another law r differs by at most the total
variation of r from p, so the bound is on a part of that distance: the part that this event shows.
"""

import math
from dataclasses import dataclass

import numpy as np

from audit.stats.laws import gamma_cdf, gamma_sf, normal_sf
from engine.core.types import Floats

TRUSTED_SKEWNESS = 1.0
_NEGLIGIBLE_SKEWNESS = 1e-4


def two_sided(z: float, skewness: float) -> float:
    """p-value of a standardised sum, twice the tail on its side."""
    tail = float(normal_sf(abs(z)))
    # the tail on the observed side: mirror the sum if it fell below its mean
    lean = math.copysign(skewness, skewness * z) if z != 0 else skewness
    if abs(lean) > _NEGLIGIBLE_SKEWNESS:
        tail = max(tail, _pearson3(abs(z), lean))
    return min(1.0, 2.0 * tail)


def _pearson3(z: float, skewness: float) -> float:
    shape = 4.0 / skewness**2
    scale = math.sqrt(shape)
    return float(gamma_sf(shape + z * scale, shape)) if skewness > 0 else float(gamma_cdf(shape - z * scale, shape))


def freedman(deviation: float, variance: float, step: float) -> float:
    """Two-sided bound on P(|sum| >= |deviation|) for steps of at most `step` in size."""
    size = abs(deviation)
    if size == 0:
        return 1.0
    return min(1.0, 2.0 * math.exp(-(size**2) / (2.0 * (variance + step * size / 3.0))))


@dataclass(frozen=True, slots=True)
class EventDeviation:
    """Frequency minus mean probability, and the largest absolute difference that the trials do not exclude."""

    trials: int
    difference: float
    bound: float
    error: float
    """The difference's standard deviation, which the probabilities give."""


def event_deviation(happened: Floats, expected: Floats, n: int, error: float) -> EventDeviation:
    """Judge trials [n] with their probabilities, NaN where there is none; a share of all `n` tokens.

    Args:
        happened: 1 or 0.
        expected: probabilities known before each trial.
        n: tokens that the difference is divided by.
        error: probability that the bound fails.
    """
    known = ~np.isnan(expected)
    happened, expected = happened[known], expected[known]
    if not n:
        return EventDeviation(0, 0.0, 1.0, 0.0)
    total, variance = float(np.sum(happened - expected)), float(np.sum(expected * (1.0 - expected)))
    bound = min(1.0, (abs(total) + radius(variance, error)) / n)
    return EventDeviation(len(happened), total / n, bound, math.sqrt(variance) / n)


def radius(variance: float, error: float) -> float:
    """Half width for a sum of steps of at most 1 in size, two-sided."""
    log = math.log(2.0 / error)
    return log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * variance * log)
