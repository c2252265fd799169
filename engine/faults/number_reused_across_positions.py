"""Four positions after each other share their acceptance number: one lucky draw keeps a whole draft."""

from __future__ import annotations

from typing import Final

from engine.core.types import Floats
from engine.faults.broken_numbers import numbers_fault
from engine.faults.chain_walk import Origin
from engine.sampling.rng import Purpose, Randomness

TOGETHER: Final = 4


class _Shared(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers; an acceptance number is that of the first position of its group."""
        if purpose is Purpose.ACCEPT:
            position -= position % TOGETHER
        return super().uniforms(position, purpose, count, index)


FAULT = numbers_fault(
    "number_reused_across_positions",
    Origin("none known: a number drawn per request where one per position is needed"),
    _Shared,
)
