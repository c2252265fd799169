"""Tolerance bound on the next difference from the largest of m measured ones.

Source: Wilks 1941, the nonparametric tolerance bound. With confidence c the
maximum of m independent draws from a continuous law is at or above its
(1 - c)^(1/m) quantile. Assumes that the m differences and the judged one are
exchangeable; positions of one sequence are not quite independent, so the
covered quantile is a statement about m effective positions. Cost: constant.
"""

from __future__ import annotations

import math


def covered_quantile(samples: int, confidence: float = 0.99) -> float:
    """The quantile that the maximum of `samples` draws covers with `confidence`; 0 without samples."""
    if samples <= 0:
        return 0.0
    return float((1.0 - confidence) ** (1.0 / samples))


def required_samples(quantile: float, confidence: float = 0.99) -> int:
    """Number of draws whose maximum covers a quantile in (0, 1)."""
    if not 0 < quantile < 1:
        raise ValueError(f"quantile {quantile} is not in (0, 1)")
    return math.ceil(math.log(1.0 - confidence) / math.log(quantile))
