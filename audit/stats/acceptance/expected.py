"""Expected acceptance, and the test of observed acceptance against it.

Closed forms of the probability that a drafted token is kept, one per rule
(chain: Leviathan et al. 2211.17192; shared noise: Daliri, Musco and Suresh
2408.07978), and the test of observed acceptances against given probabilities.
The test is exact (Poisson binomial) for small expected variance and a
skewness-corrected normal otherwise; both assume that each probability is correct
given the past. Cost: O(V) per position, O(V log V) for shared noise, O(n^2) for
the exact test.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.stats.laws import normal_isf
from audit.stats.spooled import Block, Mask, SpooledColumns, every_row
from audit.stats.tails import two_sided
from engine.core.types import Floats

EXACT_VARIANCE = 25.0
NAMES = ("accepted", "probability")


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
    columns = SpooledColumns({"accepted": "?", "probability": "f8"})
    columns.append({"accepted": accepted, "probability": probability})
    return bernoulli_test_of(columns, confidence)


def bernoulli_test_of(
    columns: SpooledColumns, confidence: float = 0.99, mask: Mask = every_row, by: Sequence[str] = ()
) -> BernoulliTest:
    """Judge the columns `accepted` and `probability`, where a mask that reads the columns `by` keeps their rows."""
    names = (*NAMES, *by)
    sums = columns.sums(names, _moments, mask, by)
    n, (expected, variance, third) = sums.n, sums.totals
    observed, impossible = 0, False
    for block in columns.chosen(names, mask):
        accepted, chance = block["accepted"], np.clip(block["probability"], 0.0, 1.0)
        observed += int(np.count_nonzero(accepted))
        impossible |= bool(np.any(accepted & (chance == 0.0)) or np.any(~accepted & (chance == 1.0)))
    if n == 0:
        return BernoulliTest(0, 0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    sd = float(np.sqrt(variance))
    z = (observed - expected) / sd if sd > 0 else 0.0
    half = float(normal_isf((1.0 - confidence) / 2.0)) * sd
    low, high = (observed - expected - half) / n, (observed - expected + half) / n
    if impossible:
        p = 0.0
    else:
        exact = variance < EXACT_VARIANCE
        p = _exact_p(columns.chosen(names, mask)) if exact else two_sided(z, third / variance**1.5)
    return BernoulliTest(n, observed, expected, z, p, low, high, sd / n)


def _moments(block: Block) -> tuple[Floats, Floats, Floats]:
    chance = np.clip(block["probability"], 0.0, 1.0)
    spread = chance * (1.0 - chance)
    return chance, spread, spread * (1.0 - 2.0 * chance)


def _exact_p(blocks: Iterator[Block]) -> float:
    """By the numbers that chance decided; their expected variance is small."""
    observed, chances = 0, [np.empty(0)]
    for block in blocks:
        chance = np.clip(block["probability"], 0.0, 1.0)
        open_ones = (chance > 0.0) & (chance < 1.0)
        observed += int(np.sum(block["accepted"][open_ones]))
        chances.append(chance[open_ones])
    return _poisson_binomial(observed, np.concatenate(chances))


def _poisson_binomial(observed: int, probability: Floats) -> float:
    """Twice the smaller exact tail of the number of successes."""
    law = np.zeros(len(probability) + 1)
    law[0] = 1.0
    for count, chance in enumerate(probability, start=1):
        law[1 : count + 1] = law[1 : count + 1] * (1.0 - chance) + law[:count] * chance
        law[0] *= 1.0 - chance
    tail = min(float(law[: observed + 1].sum()), float(law[observed:].sum()))
    return min(1.0, 2.0 * tail)
