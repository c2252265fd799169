"""Random numbers with something wrong, for faults of an engine's generator.

Knows nothing about what the numbers decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engine.core.types import Floats
from engine.decode.seams import EngineParts, NumbersOf
from engine.faults.chain_walk import Origin
from engine.faults.interface import CHAIN_ONLY, SAMPLED_SCENARIO, Fault, Scenario, Suits
from engine.sampling.rng import Purpose, Randomness


class RoundedNumbers(Randomness):
    """Every number through a function that loses something."""

    def __init__(self, seed: int, stream: int, coarse: Callable[[Floats], Floats]) -> None:
        super().__init__(seed, stream)
        self._coarse = coarse

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] coarse numbers."""
        return np.asarray(self._coarse(super().uniforms(position, purpose, count, index)))


class ReusedNumbers(Randomness):
    """One purpose draws the numbers of another."""

    def __init__(self, seed: int, stream: int, purpose: Purpose, other: Purpose) -> None:
        super().__init__(seed, stream)
        self._purpose, self._other = purpose, other

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers, of the other purpose if it is the confused one."""
        return super().uniforms(position, self._other if purpose is self._purpose else purpose, count, index)


def numbers_fault(
    name: str, origin: Origin, numbers: NumbersOf, suits: Suits = CHAIN_ONLY, scenario: Scenario = SAMPLED_SCENARIO
) -> Fault:
    """A fault of the random numbers of every request."""

    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, numbers=numbers)

    return Fault(name, origin.breaks, origin.upstream, origin.seen_from, ("numbers",), apply, suits, scenario)
