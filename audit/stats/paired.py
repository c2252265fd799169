"""Paired comparisons: the same prompts under two arms.

For yes/no outcomes: the exact McNemar test (1947), exact bounds on the direction of the discordant pairs (Clopper and
Pearson 1934), and asymptotic bounds of the loss by Tango's score (1998). For numbers: the sign-flip permutation test of
the mean, flipping whole prompts (Fisher 1935), exact by enumeration for few prompts and (1 + b) / (1 + B) otherwise.
Assumes independent prompts; the sign-flip test that a prompt's sum is symmetric about zero under the null, which holds
when the arms are exchangeable within a prompt. Cost: constant, a root search, or O(G) per flip of G prompts.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.binomial import Interval, clopper_pearson
from audit.stats.clusters import cluster_sums
from audit.stats.laws import binomial_cdf, normal_ppf
from engine.core.types import Floats

FLIPS = 9999
ENUMERATED = 14
"""Up to this many prompts the test enumerates all sign vectors."""
_CHUNK = 2_000_000


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Outcomes of n pairs: in `worse` only the first arm passed, in `better` only the second; the rest agree."""

    n: int
    worse: int
    better: int

    def __post_init__(self) -> None:
        if min(self.n, self.worse, self.better) < 0 or self.worse + self.better > self.n:
            raise ValueError(f"{self.worse} worse and {self.better} better of {self.n} pairs")


@dataclass(frozen=True, slots=True)
class McNemar:
    """A two-sided test.

    `direction` bounds the share of losses among discordant pairs with 99 % confidence; 0.5 is none.
    """

    pairs: PairCounts
    p: float
    direction: Interval


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A test that a mean over items is zero; `exact` is true if the test enumerated all flips."""

    mean: float
    p: float
    clusters: int
    exact: bool


def mcnemar(pairs: PairCounts) -> McNemar:
    """Exact: given that a pair is discordant, either arm wins it with probability 1/2 under the null."""
    discordant = pairs.worse + pairs.better
    smaller = float(binomial_cdf(min(pairs.worse, pairs.better), discordant, 0.5))
    return McNemar(pairs, min(1.0, 2.0 * smaller), clopper_pearson(pairs.worse, discordant))


def tango_upper(pairs: PairCounts, confidence: float = 0.99) -> float:
    """One-sided upper bound on the loss: the point at which the score test stops rejecting."""
    critical = float(normal_ppf(confidence))
    loss = (pairs.worse - pairs.better) / pairs.n
    if loss >= 1.0:
        return 1.0
    # the score decreases from the observed loss on; at 1 it is minus infinity
    end = 1.0 - 1e-12
    if tango_score(pairs, end) > -critical:
        return 1.0
    return float(scipy.optimize.brentq(lambda item: tango_score(pairs, item) + critical, loss, end, xtol=1e-12))


def tango_lower(pairs: PairCounts, confidence: float = 0.99) -> float:
    """One-sided lower bound on the loss, by exchanging the arms."""
    return -tango_upper(PairCounts(pairs.n, pairs.better, pairs.worse), confidence)


def tango_score(pairs: PairCounts, loss: float) -> float:
    """Standardised (worse - better) / n - loss, with the nuisance at its likelihood maximum given `loss`."""
    n, worse, better = pairs.n, pairs.worse, pairs.better
    deviation = worse - better - n * loss
    # P(better) = x solves 2n x^2 - linear x - constant = 0 where P(worse) = x + loss
    linear = worse + better - loss * (2 * n - worse + better)
    constant = better * loss * (1.0 - loss)
    own = (linear + math.sqrt(linear**2 + 8.0 * n * constant)) / (4.0 * n)
    variance = n * (2.0 * own + loss * (1.0 - loss))
    if variance <= 0.0:
        return 0.0 if deviation == 0 else math.copysign(math.inf, deviation)
    return deviation / math.sqrt(variance)


def sign_flip(
    differences: Floats, cluster: NDArray[np.int64], generator: np.random.Generator, flips: int = FLIPS
) -> SignFlip:
    """Two-sided test that the mean of `differences` [n] is 0, flipping clusters [n] as one."""
    if len(differences) == 0:
        return SignFlip(0.0, 1.0, 0, exact=True)
    sums = cluster_sums(np.asarray(differences, dtype=np.float64), cluster)
    moved = sums[sums != 0]
    exact = len(moved) <= ENUMERATED
    observed = abs(float(moved.sum()))
    # equal sums differ by rounding; they count as at least as extreme
    bar = observed - 1e-9 * float(np.abs(moved).sum())
    if exact:
        p = float(np.mean(np.abs(_all_signs(len(moved)) @ moved) >= bar))
    else:
        p = (1 + _flips_above(moved, bar, generator, flips)) / (1 + flips)
    return SignFlip(float(np.mean(differences)), p, len(sums), exact)


def _flips_above(moved: Floats, bar: float, generator: np.random.Generator, flips: int) -> int:
    above, left = 0, flips
    while left:
        rows = min(left, max(1, _CHUNK // len(moved)))
        signs = generator.integers(0, 2, size=(rows, len(moved)), dtype=np.int8)
        totals = 2.0 * (signs @ moved) - moved.sum()
        above += int(np.sum(np.abs(totals) >= bar))
        left -= rows
    return above


def _all_signs(count: int) -> Floats:
    bits = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    return np.asarray(2.0 * bits - 1.0, dtype=np.float64)
