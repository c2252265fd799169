"""Many tests, one error rate.

Source: Holm 1979. Valid under any dependence between the tests. Cost: one sort.

Confidence levels in words.

A level never reads 100 %: a run with interim looks asks for levels like 0.99999,
and rounding them to full certainty would claim what no test gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

import numpy as np

from engine.core.types import Floats


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """Adjusted p-values in the given order.

    Rejecting where the adjusted value is below alpha keeps the probability of any false rejection at or below alpha.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


LEAST: Final = Decimal("1e-12")
"""Below this, the error probability is rounding noise of `1 - confidence`."""


def percent(confidence: float) -> str:
    """The level in per cent, to two digits of itself and of its error probability: `99 %`, `99.39 %`, `99.9997 %`."""
    error = Decimal(1.0 - confidence)
    if error < LEAST:
        return f"more than {_text(1 - LEAST)}"
    place = min(error.adjusted(), Decimal(confidence).adjusted())
    # one place after the first digit keeps two digits
    return _text(1 - error.quantize(Decimal(1).scaleb(place - 1), ROUND_HALF_EVEN))


def _text(level: Decimal) -> str:
    return f"{(100 * level).normalize():f} %"
