"""Intervals where the prompt, not the token, is the independent unit.

Tokens of one response share a context and a difficulty, so a rate over tokens varies as if there were far fewer of
them. Every function sums within clusters first. `ratio_interval`, `mean_interval` and `speed_up` leave out one cluster
at a time (the jackknife, known as CR3 in regression: Cameron and Miller 2015) and use the t law with G - 1 degrees of
freedom for G clusters; for a mean of equal clusters this is the t interval of their means. `quantile_interval` takes
order statistics of as many items as the clusters are worth. Assumes that clusters are independent draws; all intervals
are asymptotic in G. Cost: a sort.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.laws import t_ppf
from engine.core.types import Floats


@dataclass(frozen=True, slots=True)
class ClusterInterval:
    """An estimate over n items in `clusters` clusters.

    `se` is on the scale of the estimate, for a speed-up on the scale of its logarithm, and NaN for a quantile.
    `design_effect` is the variance over that of n independent items, so that n / design_effect is the effective sample
    size; NaN if undefined. With fewer than two clusters the bounds are infinite.
    """

    estimate: float
    low: float
    high: float
    se: float
    clusters: int
    n: int
    design_effect: float


def cluster_sums(values: Floats, cluster: NDArray[np.int64]) -> Floats:
    """[G] or [G, K] sums of `values` [n] or [n, K] within clusters, by ascending cluster id."""
    if len(values) != len(cluster):
        raise ValueError(f"{len(values)} values for {len(cluster)} cluster ids")
    ids, place = np.unique(cluster, return_inverse=True)
    sums = np.zeros((len(ids), *values.shape[1:]))
    np.add.at(sums, place, values)
    return sums


def ratio_interval(
    numerator: Floats, denominator: Floats, cluster: NDArray[np.int64], confidence: float = 0.99
) -> ClusterInterval:
    """Sum of `numerator` [n] over sum of `denominator` [n], by the jackknife over clusters.

    Clusters with zero numerator and denominator carry no information and are left out.

    Raises:
        ValueError: a negative denominator, or only zeros.
    """
    top, below = _ratio_sums(numerator, denominator, cluster)
    estimate = float(top.sum() / below.sum())
    interval = jackknife_interval(estimate, left_out_ratios(top, below), len(numerator), confidence)
    alone = _jackknife_se(estimate, left_out_ratios(numerator, denominator))
    known = np.isfinite(interval.se) and 0.0 < alone < np.inf
    return replace(interval, design_effect=(interval.se / alone) ** 2 if known else np.nan)


def mean_interval(values: Floats, cluster: NDArray[np.int64], confidence: float = 0.99) -> ClusterInterval:
    """Mean of `values` [n] over items, each item with weight 1."""
    return ratio_interval(values, np.ones(len(values)), cluster, confidence)


def quantile_interval(
    values: Floats, cluster: NDArray[np.int64], level: float, confidence: float = 0.99
) -> ClusterInterval:
    """The `level` quantile of `values` [n]: the smallest value with at least that share at or below it.

    Between two order statistics, exact for independent items (David and Nagaraja 2003, section 7.1); clustered items
    count as n / design effect of them (as Korn and Graubard 1998 do for shares). A bound beyond the data is infinite:
    the P99 of 50 prompts has no upper bound.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"quantile level {level} is not in (0, 1)")
    ordered = np.sort(values)
    estimate = float(ordered[_rank(level * len(values))])
    shares = mean_interval((values <= estimate).astype(np.float64), cluster, confidence)
    if shares.clusters < 2:
        return replace(shares, estimate=estimate, low=-np.inf, high=np.inf, se=np.nan)
    # a design effect below 1 is chance; without a design effect every prompt counts once
    effect = max(1.0, shares.design_effect) if np.isfinite(shares.design_effect) else len(values) / shares.clusters
    worth, tail = math.floor(len(values) / effect + 1e-9), (1.0 - confidence) / 2.0
    below, above = int(scipy.stats.binom.ppf(tail, worth, level)), int(scipy.stats.binom.isf(tail, worth, level)) + 1
    low = float(ordered[_rank(below / worth * len(values))]) if below > 0 else -np.inf
    high = float(ordered[_rank(above / worth * len(values))]) if above <= worth else np.inf
    return replace(shares, estimate=estimate, low=low, high=high, se=np.nan, design_effect=effect)


@dataclass(frozen=True, slots=True)
class Timings:
    """[n] tokens and seconds of one arm's responses, and the prompt that each answers."""

    tokens: Floats
    seconds: Floats
    prompt: NDArray[np.int64]


def speed_up(own: Timings, baseline: Timings, confidence: float = 0.99) -> ClusterInterval:
    """Tokens per second of `own` over those of `baseline`, paired by prompt.

    The jackknife leaves a prompt out of both arms at once, so that its common effect cancels. The interval is that of
    the logarithm, mapped back: never negative. `se` is that of the logarithm.

    Raises:
        ValueError: the arms did not answer the same prompts.
    """
    if not np.array_equal(np.unique(own.prompt), np.unique(baseline.prompt)):
        raise ValueError("the two arms did not answer the same prompts")
    ours, theirs = (cluster_sums(np.column_stack([arm.tokens, arm.seconds]), arm.prompt) for arm in (own, baseline))
    mine, other = ours.sum(axis=0), theirs.sum(axis=0)
    logarithm = float(np.log(mine[0] / mine[1]) - np.log(other[0] / other[1]))
    left_out = np.log(left_out_ratios(ours[:, 0], ours[:, 1])) - np.log(left_out_ratios(theirs[:, 0], theirs[:, 1]))
    interval = jackknife_interval(logarithm, left_out, len(own.tokens), confidence)
    bounds = np.exp([interval.estimate, interval.low, interval.high])
    return replace(interval, estimate=float(bounds[0]), low=float(bounds[1]), high=float(bounds[2]))


def jackknife_interval(estimate: float, left_out: Floats, n: int, confidence: float = 0.99) -> ClusterInterval:
    """The interval of an estimate over `n` items from its values without each of G clusters, `left_out` [G]."""
    clusters = len(left_out)
    se = _jackknife_se(estimate, left_out)
    half = float(t_ppf(0.5 + confidence / 2.0, clusters - 1)) * se if clusters > 1 else np.inf
    return ClusterInterval(estimate, estimate - half, estimate + half, se, clusters, n, np.nan)


def mean_of_strata(strata: Sequence[ClusterInterval], confidence: float = 0.99) -> ClusterInterval:
    """The mean of the estimates of independent strata, each with the same weight regardless of size.

    Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), each stratum having one fewer than clusters.

    Raises:
        ValueError: no strata.
    """
    if not strata:
        raise ValueError("a mean of strata needs one")
    variances = np.array([item.se for item in strata]) ** 2 / len(strata) ** 2
    clusters = np.array([item.clusters for item in strata])
    se, half = float(np.sqrt(variances.sum())), 0.0
    if not np.isfinite(se) or clusters.min() < 2:
        half = np.inf
    elif se > 0:
        freedom = float(variances.sum() ** 2 / np.sum(variances**2 / (clusters - 1)))
        half = float(t_ppf(0.5 + confidence / 2.0, freedom)) * se
    estimate = float(np.mean([item.estimate for item in strata]))
    count = sum(item.n for item in strata)
    return ClusterInterval(estimate, estimate - half, estimate + half, se, int(clusters.sum()), count, np.nan)


def left_out_ratios(numerator: Floats, denominator: Floats) -> Floats:
    """[G] ratio of the sums without each cluster; not finite if one cluster holds the whole denominator."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((numerator.sum() - numerator) / (denominator.sum() - denominator))


def _ratio_sums(numerator: Floats, denominator: Floats, cluster: NDArray[np.int64]) -> tuple[Floats, Floats]:
    if np.any(denominator < 0):
        raise ValueError("a ratio's denominators are 0 or more")
    sums = cluster_sums(np.column_stack([numerator, denominator]), cluster)
    sums = sums[np.any(sums != 0, axis=1)]
    if not np.any(sums[:, 1]):
        raise ValueError("a ratio needs a denominator above 0")
    return sums[:, 0], sums[:, 1]


def _jackknife_se(estimate: float, left_out: Floats) -> float:
    """Jackknife standard error; infinite for one cluster, or if the others alone give no estimate."""
    count = len(left_out)
    if count < 2 or not np.all(np.isfinite(left_out)):
        return np.inf
    return float(np.sqrt((count - 1) / count * np.sum((left_out - estimate) ** 2)))


def _rank(items: float) -> int:
    """Index of the value with `items` at or below it; a product of a share is a whole number only up to rounding."""
    return max(0, math.ceil(items - 1e-9) - 1)
