"""Many tests, one error rate.

Source: Holm 1979. Valid under any dependence between the tests. Cost: one sort.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.core.types import Floats


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """Adjusted p-values in the given order.

    Rejecting where the adjusted value is below alpha keeps the probability of
    any false rejection at or below alpha.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
