"""Tail probabilities of sums whose first three moments are known.

`two_sided` uses the Pearson type III law, a shifted gamma with the sum's mean,
variance and skewness (Pearson 1895), and never goes below the normal tail.
Above skewness 1 that approximation is unreliable, and `freedman`, a bound that
holds for every martingale with bounded steps (Freedman 1975, theorem 1.6), is
used by the callers. Cost: constant.
"""

from __future__ import annotations

import math

from audit.stats.laws import gamma_cdf, gamma_sf, normal_sf

TRUSTED_SKEWNESS = 1.0
_NEGLIGIBLE_SKEWNESS = 1e-4


def two_sided(z: float, skewness: float) -> float:
    """p-value of a standardised sum, twice the tail on its side."""
    tail = float(normal_sf(abs(z)))
    # the tail on the observed side: mirror the sum if it fell below its mean
    lean = math.copysign(skewness, skewness * z) if z != 0 else skewness
    if abs(lean) > _NEGLIGIBLE_SKEWNESS:
        tail = max(tail, _pearson3(abs(z), lean))
    return min(1.0, 2.0 * tail)


def _pearson3(z: float, skewness: float) -> float:
    shape = 4.0 / skewness**2
    scale = math.sqrt(shape)
    if skewness > 0:
        return float(gamma_sf(shape + z * scale, shape))
    return float(gamma_cdf(shape - z * scale, shape))


def freedman(deviation: float, variance: float, step: float) -> float:
    """Two-sided bound on P(|sum| >= |deviation|) for steps of at most `step` in size."""
    size = abs(deviation)
    if size == 0:
        return 1.0
    return min(1.0, 2.0 * math.exp(-(size**2) / (2.0 * (variance + step * size / 3.0))))
