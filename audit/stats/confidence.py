"""Confidence levels in words.

A level never reads 100 %: a run with interim looks asks for levels like 0.99999,
and rounding them to full certainty would claim what no test gives.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

LEAST: Final = Decimal("1e-12")
"""Below this, the error probability is rounding noise of `1 - confidence`."""


def percent(confidence: float) -> str:
    """The level in per cent, to two digits of itself and of its error probability: `99 %`, `99.39 %`, `99.9997 %`."""
    error = Decimal(1.0 - confidence)
    if error < LEAST:
        return f"more than {_text(1 - LEAST)}"
    place = min(error.adjusted(), Decimal(confidence).adjusted())
    # one place after the first digit keeps two digits
    rounded = error.quantize(Decimal(1).scaleb(place - 1), ROUND_HALF_EVEN)
    return _text(1 - rounded)


def _text(level: Decimal) -> str:
    return f"{(100 * level).normalize():f} %"
