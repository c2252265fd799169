"""Exact binomial bounds.

Source: Clopper and Pearson 1934. Assumes independent trials with one common probability; callers with clustered trials
document it on their own page. Cost: two beta quantiles.
"""

from dataclasses import dataclass

import scipy

from audit.stats.laws import beta_ppf


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


def upper_bound(successes: int, trials: int, confidence: float = 0.99) -> float:
    """One-sided upper bound on a probability; 1 without trials."""
    _require_counts(successes, trials)
    return 1.0 if successes >= trials else float(beta_ppf(confidence, successes + 1, trials - successes))


def lower_bound(successes: int, trials: int, confidence: float = 0.99) -> float:
    """One-sided lower bound on a probability; 0 without successes."""
    _require_counts(successes, trials)
    return 0.0 if successes == 0 else float(beta_ppf(1.0 - confidence, successes, trials - successes + 1))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.99) -> Interval:
    """Two-sided interval, half of the error probability on each side."""
    half = 0.5 + confidence / 2.0
    return Interval(lower_bound(successes, trials, half), upper_bound(successes, trials, half))


def _require_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")


def count_range(trials: int, probability: float, confidence: float = 0.99) -> Interval:
    """Counts of successes that one such experiment gives with at least this probability, equal tails."""
    low, high = scipy.stats.binom.interval(confidence, trials, probability)
    return Interval(float(low), float(high))


def covered_quantile(samples: int, confidence: float = 0.99) -> float:
    """The quantile that the maximum of `samples` draws covers with `confidence`; 0 without samples.

    Wilks 1941, the nonparametric tolerance bound: with confidence c the maximum of m independent draws from a
    continuous law is at or above its (1 - c)^(1/m) quantile. Assumes that the m differences and the judged one are
    exchangeable; positions of one sequence are not quite independent, so the quantile is a statement about m
    effective positions.
    """
    return 0.0 if samples <= 0 else float((1.0 - confidence) ** (1.0 / samples))
