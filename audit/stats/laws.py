"""Tails and quantiles of the laws that the tests use, by the special functions that define them.

scipy.stats has them too, but takes a second to import, in every command and every helper process. sf is the upper tail,
1 - cdf; ppf and isf are the quantiles of cdf and sf.
"""

from typing import Any, TypeAlias

import numpy as np
import scipy

Numbers: TypeAlias = Any
"""A number or an array, and so is the answer."""


def normal_sf(z: Numbers) -> Numbers:
    """Of the standard normal law."""
    return scipy.special.ndtr(np.negative(z))


def normal_ppf(share: Numbers) -> Numbers:
    """Of the standard normal law."""
    return scipy.special.ndtri(share)


def normal_isf(share: Numbers) -> Numbers:
    """Of the standard normal law."""
    return -scipy.special.ndtri(share)


def chi2_sf(x: Numbers, degrees: Numbers) -> Numbers:
    """Of the chi-square law."""
    return scipy.special.chdtrc(degrees, x)


def t_sf(t: Numbers, degrees: Numbers) -> Numbers:
    """Of Student's law."""
    return scipy.special.stdtr(degrees, np.negative(t))


def t_ppf(share: Numbers, degrees: Numbers) -> Numbers:
    """Of Student's law."""
    return scipy.special.stdtrit(degrees, share)


def gamma_cdf(x: Numbers, shape: Numbers, scale: Numbers = 1.0) -> Numbers:
    """Of the gamma law, 0 below its support."""
    return scipy.special.gammainc(shape, np.maximum(np.divide(x, scale), 0.0))


def gamma_sf(x: Numbers, shape: Numbers, scale: Numbers = 1.0) -> Numbers:
    """Of the gamma law, 1 below its support."""
    return scipy.special.gammaincc(shape, np.maximum(np.divide(x, scale), 0.0))


def beta_ppf(share: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """Of the beta law."""
    return scipy.special.betaincinv(a, b, share)


def binomial_cdf(count: Numbers, trials: Numbers, chance: Numbers) -> Numbers:
    """Of successes in independent trials, for whole counts."""
    inside = np.clip(count, 0, np.subtract(trials, 1))
    result = scipy.special.betainc(np.subtract(trials, inside), np.add(inside, 1), np.subtract(1.0, chance))
    return np.where(np.less(count, 0), 0.0, np.where(np.greater_equal(count, trials), 1.0, result))


def binomial_sf(count: Numbers, trials: Numbers, chance: Numbers) -> Numbers:
    """P(successes > count) in independent trials, for whole counts."""
    inside = np.clip(count, 0, np.subtract(trials, 1))
    result = scipy.special.betainc(np.add(inside, 1), np.subtract(trials, inside), chance)
    return np.where(np.less(count, 0), 1.0, np.where(np.greater_equal(count, trials), 0.0, result))


def poisson_sf(count: Numbers, mean: Numbers) -> Numbers:
    """P(X > count) of the Poisson law, for whole counts of at least 0."""
    return scipy.special.pdtrc(count, mean)
