"""Merging, calibrating and correcting e-values, and p-values under interim looks.

An e-value is a nonnegative number with mean at most 1 under its null hypothesis:
evidence grows with it, and 1 / e is a p-value. Averages merge e-values under any
dependence, products merge independent or sequential ones (Vovk and Wang 2021).
e-BH (Wang and Ramdas 2022) keeps the false discovery rate, e-Holm (Vovk and Wang
2021, closed arithmetic merging) the probability of any false rejection, both
under any dependence. All functions take and return natural logarithms of e, because
wealth overflows. Cost: one sort; e-Holm is quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from engine.core.types import Floats

Values: TypeAlias = "Sequence[float] | Floats"


def average(log_e: Values, weights: Values | None = None) -> float:
    """Log of the weighted average, any dependence; `weights` are fixed beforehand and add up to 1."""
    logs = np.asarray(log_e, dtype=np.float64)
    shares = np.full(len(logs), 1.0 / max(len(logs), 1)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not math.isclose(float(np.sum(shares)), 1.0, abs_tol=1e-9) or np.min(shares) < 0:
        raise ValueError(f"weights {shares.tolist()} are not shares of 1")
    return float(scipy.special.logsumexp(logs, b=shares))


def product(log_e: Values) -> float:
    """Log of the product: for independent e-values, or each valid given those before it."""
    return float(np.sum(np.asarray(log_e, dtype=np.float64)))


def to_p(log_e: float) -> float:
    """The p-value min(1, 1 / e)."""
    return math.exp(-max(0.0, log_e))


def power_calibrated(p: Values, exponent: float = 0.5) -> Floats:
    """Logs of e = k p^(k - 1), an e-value for every k in (0, 1) if p is a p-value; p = 0 gives infinity."""
    if not 0 < exponent < 1:
        raise ValueError(f"exponent {exponent} is not in (0, 1)")
    with np.errstate(divide="ignore"):
        return np.asarray(math.log(exponent) + (exponent - 1.0) * np.log(np.asarray(p, dtype=np.float64)))


def calibrated(p: Values) -> Floats:
    """Logs of e = (1 - p + p log p) / (p log(p)^2), the average of `power_calibrated` over all exponents."""
    values = np.asarray(p, dtype=np.float64)
    found = np.full(values.shape, -math.log(2.0))
    found[values <= 0] = np.inf
    # near p = 1 numerator and denominator vanish together; the limit is 1 / 2
    inner = (values > 0) & (values < 1.0 - 1e-4)
    logs = np.log(values[inner])
    found[inner] = np.log((1.0 - values[inner] + values[inner] * logs) / (values[inner] * logs**2))
    return found


def e_bh(log_e: Values, alpha: float = 0.01) -> NDArray[np.bool_]:
    """Which hypotheses to reject: false discovery rate at most `alpha` under any dependence."""
    logs = np.asarray(log_e, dtype=np.float64)
    count = len(logs)
    order = np.argsort(-logs, kind="stable")
    enough = logs[order] >= math.log(max(count, 1)) - np.log(alpha * np.arange(1, count + 1))
    rejected = np.zeros(count, dtype=np.bool_)
    if enough.any():
        rejected[order[: int(np.flatnonzero(enough)[-1]) + 1]] = True
    return rejected


def e_holm(log_e: Values) -> Floats:
    """Logs of adjusted e-values in the given order.

    The adjusted value of a hypothesis is the smallest average over all sets of
    hypotheses that contain it. Rejecting where it reaches 1 / alpha keeps the
    probability of any false rejection at or below alpha.
    """
    logs = np.asarray(log_e, dtype=np.float64)
    order = np.argsort(logs, kind="stable")
    ordered = logs[order]
    before = np.concatenate([[-np.inf], np.logaddexp.accumulate(ordered)[:-1]]) if len(logs) else ordered
    sizes = np.log(np.arange(1, len(logs) + 1))
    adjusted = np.empty_like(logs)
    for rank, own in enumerate(ordered):
        # only smaller values lower the average: the j smallest, then itself
        adjusted[order[rank]] = np.min(np.logaddexp(own, before[: rank + 1]) - sizes[: rank + 1])
    return adjusted


def across_interim_looks(p_values: Values, weights: Values | None = None) -> Floats:
    """[L] the p-value to report when stopping at each of L planned looks.

    Each interim look spends a share of the error probability, fixed beforehand and
    equal by default; the reported value is the smallest p / share so far. An
    e-process needs no such correction: its running maximum is already valid.
    """
    p = np.asarray(p_values, dtype=np.float64)
    shares = np.full(len(p), 1.0 / max(len(p), 1)) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(p) and (np.min(shares) <= 0 or float(np.sum(shares)) > 1.0 + 1e-9):
        raise ValueError(f"shares {shares.tolist()} of the error probability must be positive and add up to at most 1")
    return np.minimum(1.0, np.minimum.accumulate(p / shares))
