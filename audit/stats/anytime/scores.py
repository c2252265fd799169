"""Score martingales: sums of a predictable score of each token minus its expectation.

For scores s_t fixed before token Y_t is drawn, sum s_t(Y_t) - E_p s_t is a martingale with known variance and third
moment, so the test needs no simulation. Two scores are used: log p, which sees temperature and row faults, and q / (p +
q), which lies in [0, 1] and is the direction in which every leak of the draft moves the law. Under r = (1 - l) p + l q
the leak l has the moment estimate sum(s - E_p s) / sum(E_q s - E_p s). Assumes that Y_t ~ p_t given the past; p-values
are asymptotic with a skewness correction, or a martingale bound if the skewness is above 1. Cost: O(V) per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.stats.laws import normal_isf, normal_ppf
from audit.stats.tails import TRUSTED_SKEWNESS, freedman, two_sided
from engine.core.types import Floats

LOG_FLOOR = 1e-6
"""The log p score raises smaller probabilities to this one, so that its steps are bounded."""


@dataclass(frozen=True, slots=True)
class Moments:
    """[E] of each token's score under p: mean, variance and third central moment."""

    mean: Floats
    variance: Floats
    third: Floats


@dataclass(frozen=True, slots=True)
class ScoreTest:
    """`effect` is the mean of s - E s per token, in [low, high] with 99 % confidence."""

    n: int
    z: float
    p: float
    effect: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LeakEstimate:
    """`share` of tokens that follow q, with one-sided bounds, its standard error and the detectable share."""

    share: float
    low: float
    high: float
    error: float
    detectable: float
    """The smallest share found with probability 0.9 at a two-sided level of 0.01."""


def log_p_scores(p: Floats) -> Floats:
    """[E, V] log p, floored at `LOG_FLOOR`."""
    return np.asarray(np.log(np.maximum(p, LOG_FLOOR)))


def leak_scores(p: Floats, q: Floats) -> Floats:
    """[E, V] q / (p + q), 0 if both are 0."""
    total = p + q
    return np.divide(q, total, out=np.zeros_like(total), where=total > 0)


def moments(scores: Floats, p: Floats) -> Moments:
    """Moments of `scores` [E, V] under `p` [E, V]."""
    mean = np.sum(p * scores, axis=1)
    centred = scores - mean[:, None]
    # products, because a power of three costs ten times as much
    weighted = p * centred * centred
    return Moments(mean, np.sum(weighted, axis=1), np.sum(weighted * centred, axis=1))


def picked(scores: Floats, token: NDArray[np.int64]) -> Floats:
    """[E] the score of each emitted token."""
    return np.asarray(scores[np.arange(len(token)), token])


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """Sums over n tokens: observed minus expected score, and the moments around it."""

    n: int
    deviation: float
    variance: float
    third: float

    @classmethod
    def of(cls, observed: Floats, expected: Moments) -> ScoreSums:
        """Those of `observed` [n] against its moments."""
        terms = (observed - expected.mean, expected.variance, expected.third)
        return cls(len(observed), *(float(np.sum(term)) for term in terms))


def score_test(observed: Floats, expected: Moments, step: float) -> ScoreTest:
    """Judge `observed` [E] against its moments; no step is larger than `step`."""
    return score_test_of(ScoreSums.of(observed, expected), step)


def score_test_of(sums: ScoreSums, step: float) -> ScoreTest:
    """Judge the tokens behind the sums; no step is larger than `step`."""
    n, deviation, variance = sums.n, sums.deviation, sums.variance
    if n == 0 or variance <= 1e-12 * max(n, 1):
        return ScoreTest(n, 0.0, 1.0, 0.0, 0.0, 0.0)
    sd = float(np.sqrt(variance))
    z, skewness = deviation / sd, sums.third / sd**3
    trusted = abs(skewness) <= TRUSTED_SKEWNESS
    p = two_sided(z, skewness) if trusted else freedman(deviation, variance, step)
    half = float(normal_ppf(0.995)) * sd
    return ScoreTest(n, z, p, deviation / n, (deviation - half) / n, (deviation + half) / n)


def leak_estimate(observed: Floats, expected: Moments, mean_under_q: Floats, confidence: float = 0.99) -> LeakEstimate:
    """The share of draws from q instead of p; all arrays [E], `confidence` is that of each bound."""
    span = float(np.sum(mean_under_q - expected.mean))
    return leak_estimate_of(ScoreSums.of(observed, expected), span, confidence)


def leak_estimate_of(sums: ScoreSums, span: float, confidence: float = 0.99) -> LeakEstimate:
    """The share of draws from q, given the scores' sums and the sum of their means under q minus those under p."""
    sd = float(np.sqrt(sums.variance))
    if span <= 0:
        return LeakEstimate(0.0, 0.0, 1.0, math.inf, 1.0)
    share = sums.deviation / span
    half = float(normal_isf(1.0 - confidence)) * sd / span
    detectable = float(normal_ppf(0.995) + normal_ppf(0.9)) * sd / span
    return LeakEstimate(share, share - half, share + half, sd / span, detectable)
