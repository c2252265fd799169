"""Each request draws the random numbers of the one before it.

Every response follows the right law; a request with a seed does not get the
response of that seed.
"""

from __future__ import annotations

from dataclasses import replace

from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.sampling.rng import Randomness


def _apply(parts: EngineParts) -> EngineParts:
    before: list[int] = []

    def numbers(seed: int, stream: int) -> Randomness:
        before.append(stream)
        return parts.numbers(seed, before[-2] if len(before) > 1 else stream)

    return replace(parts, numbers=numbers)


FAULT = Fault(
    name="numbers_of_another_request",
    breaks="replay",
    upstream="none known: a table of generators by row that is one request behind",
    seen_from="engine evidence",
    parts=("numbers",),
    apply=_apply,
    suits=Suits(needs=("several requests",)),
)
