"""The target's noise is keyed by how many draws came before, not by the position.

What a rejected draft used up is gone, so a sampled run never equals the plain run with its seed.
"""

from __future__ import annotations

from engine.core.types import Floats, Protocol
from engine.faults.broken_numbers import numbers_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario, Suits
from engine.sampling.rng import Randomness


class _Counting(Randomness):
    def __init__(self, seed: int, stream: int) -> None:
        super().__init__(seed, stream)
        self._drawn = 0

    def gumbel(self, position: int, vocabulary: int) -> Floats:  # noqa: ARG002 - that is the fault
        """[vocabulary] the noise of the next draw."""
        self._drawn += 1
        return super().gumbel(self._drawn, vocabulary)


FAULT = numbers_fault(
    "noise_keyed_by_draw",
    Origin(
        "none known: the first runner of vllm-project/vllm uses up numbers for tokens not kept, by reading",
        "text",
        "equality",
    ),
    _Counting,
    Suits((Protocol.GUMBEL,)),
    Scenario(Protocol.GUMBEL),
)
