"""Expected acceptance, and the test of observed acceptance against it.

Closed forms of the probability that a drafted token is kept, one per rule
(chain: Leviathan et al. 2211.17192; shared noise: Daliri, Musco and Suresh
2408.07978), and the test of observed acceptances against given probabilities.
The test is exact (Poisson binomial) for small expected variance and a
skewness-corrected normal otherwise; both assume that each probability is correct
given the past. Cost: O(V) per position, O(V log V) for shared noise, O(n^2) for
the exact test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.tails import two_sided
from engine.core.types import Floats

EXACT_VARIANCE = 25.0


@dataclass(frozen=True, slots=True)
class BernoulliTest:
    """Result as counts, not rates; `low` and `high` bound (observed - expected) / n, `error` is its standard error."""

    n: int
    observed: int
    expected: float
    z: float
    p: float
    low: float
    high: float
    error: float


def chain_acceptance(p: Floats, q: Floats) -> Floats:
    """[E] sum_x min(p, q): rejection sampling of a token drawn from q."""
    return np.asarray(np.minimum(p, q).sum(axis=-1))


def match_acceptance(p: Floats, q: Floats) -> Floats:
    """[E] sum_x p(x) q(x): an independent draft equals the target's own sample."""
    return np.asarray(np.sum(p * q, axis=-1))


def coupled_acceptance(p: Floats, q: Floats) -> float:
    """One row pair [V]: both sides take the argmax of log-probability plus the same Gumbel noise.

    P(both choose i) = 1 / sum_j max(p_j / p_i, q_j / q_i). Sorted by p_j / q_j
    the maximum is p's for larger ratios and q's for smaller ones.
    """
    both = (p > 0) | (q > 0)
    p, q = p[both], q[both]
    with np.errstate(divide="ignore"):
        ratio = p / q
    order = np.argsort(-ratio, kind="stable")
    p, q = p[order], q[order]
    above = np.cumsum(p)
    below = np.append(np.cumsum(q[::-1])[::-1][1:], 0.0)
    shared = (p > 0) & (q > 0)
    return float(np.sum(1.0 / (above[shared] / p[shared] + below[shared] / q[shared])))


def bernoulli_test(accepted: NDArray[np.bool_], probability: Floats, confidence: float = 0.99) -> BernoulliTest:
    """Judge `accepted` [n] against `probability` [n]; `confidence` is that of the interval."""
    probability = np.clip(probability, 0.0, 1.0)
    n, observed, expected = len(accepted), int(np.sum(accepted)), float(np.sum(probability))
    variance = float(np.sum(probability * (1.0 - probability)))
    if n == 0:
        return BernoulliTest(0, 0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    sd = float(np.sqrt(variance))
    z = (observed - expected) / sd if sd > 0 else 0.0
    half = float(scipy.stats.norm.isf((1.0 - confidence) / 2.0)) * sd
    low, high = (observed - expected - half) / n, (observed - expected + half) / n
    return BernoulliTest(n, observed, expected, z, _p_value(accepted, probability, z, variance), low, high, sd / n)


def _p_value(accepted: NDArray[np.bool_], probability: Floats, z: float, variance: float) -> float:
    impossible = np.any(accepted & (probability == 0.0)) or np.any(~accepted & (probability == 1.0))
    if impossible:
        return 0.0
    if variance >= EXACT_VARIANCE:
        third = float(np.sum(probability * (1.0 - probability) * (1.0 - 2.0 * probability)))
        return two_sided(z, third / variance**1.5)
    open_ones = (probability > 0.0) & (probability < 1.0)
    return _poisson_binomial(int(np.sum(accepted[open_ones])), probability[open_ones])


def _poisson_binomial(observed: int, probability: Floats) -> float:
    """Twice the smaller exact tail of the number of successes."""
    law = np.zeros(len(probability) + 1)
    law[0] = 1.0
    for count, chance in enumerate(probability, start=1):
        law[1 : count + 1] = law[1 : count + 1] * (1.0 - chance) + law[:count] * chance
        law[0] *= 1.0 - chance
    tail = min(float(law[: observed + 1].sum()), float(law[observed:].sum()))
    return min(1.0, 2.0 * tail)
