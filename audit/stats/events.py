"""How far the frequency of predicted events is from their probabilities, with a bound.

Each event has a probability that is known before its trial, so the sum of (happened - probability) is a martingale with
steps of at most 1 and a known variance. The radius is Freedman's (1975) at that variance. The frequency of an event
under another law r differs by at most the total variation of r from p, so the bound is on a part of that distance: the
part that this event shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.core.types import Floats


@dataclass(frozen=True, slots=True)
class EventDeviation:
    """Frequency minus mean probability, and the largest absolute difference that the trials do not exclude."""

    trials: int
    difference: float
    bound: float


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
        return EventDeviation(0, 0.0, 1.0)
    total = float(np.sum(happened - expected))
    width = radius(float(np.sum(expected * (1.0 - expected))), error)
    return EventDeviation(len(happened), total / n, min(1.0, (abs(total) + width) / n))


def radius(variance: float, error: float) -> float:
    """Half width for a sum of steps of at most 1 in size, two-sided."""
    log = math.log(2.0 / error)
    return log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * variance * log)
