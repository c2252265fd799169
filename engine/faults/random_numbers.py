"""Faults of random numbers: numbers that are coarse, reused, shared between requests or keyed by the wrong thing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from engine.core.types import Floats, Protocol
from engine.decode.seams import EngineParts, NumbersOf
from engine.faults.interface import CHAIN_ONLY, COUPLED, SAMPLED_SCENARIO, Fault, Origin, Scenario, Suits
from engine.sampling.rng import Purpose, Randomness

SHARING: Final = 4
"""The number of consecutive positions that share an acceptance number."""
STEPS_OF_24_BITS: Final = 2.0**24


def numbers_fault(
    name: str, origin: Origin, numbers: NumbersOf, suits: Suits = CHAIN_ONLY, scenario: Scenario = SAMPLED_SCENARIO
) -> Fault:
    """A fault of the random numbers of every request."""

    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, numbers=numbers)

    return Fault(
        name,
        origin.upstream,
        ("numbers",),
        apply,
        suits,
        scenario,
        breaks=origin.breaks,
        seen_from=origin.seen_from,
        situation=origin.situation,
    )


# one number for two decisions


class ReusedNumbers(Randomness):
    """One purpose draws the numbers of another."""

    def __init__(self, seed: int, stream: int, purpose: Purpose, other: Purpose) -> None:
        super().__init__(seed, stream)
        self._purpose, self._other = purpose, other

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers; those of the other purpose if `purpose` is the confused one."""
        return super().uniforms(position, self._other if purpose is self._purpose else purpose, count, index)


ONE_NUMBER_ACCEPT_AND_RESIDUAL = numbers_fault(
    "one_number_accept_and_residual",
    Origin("vllm-project/vllm-ascend#16370", situation="recovered_token"),
    lambda seed, stream: ReusedNumbers(seed, stream, Purpose.RESIDUAL, Purpose.ACCEPT),
)
"""The number that rejected a token draws its replacement too: the acceptance rate is right, the law is not."""

RESIDUAL_REUSES_DRAFT_NUMBER = numbers_fault(
    "residual_reuses_draft_number",
    Origin("vllm-project/vllm#47386, #54282", situation="recovered_token"),
    lambda seed, stream: ReusedNumbers(seed, stream, Purpose.RESIDUAL, Purpose.DRAFT),
)
"""The number that drew a rejected token draws its replacement too."""


class _SharedByPositions(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers; an acceptance number is that of the first position of its group."""
        if purpose is Purpose.ACCEPT:
            position -= position % SHARING
        return super().uniforms(position, purpose, count, index)


NUMBER_REUSED_ACROSS_POSITIONS = numbers_fault(
    "number_reused_across_positions",
    Origin("none known: a number drawn per request where one per position is needed", situation="kept_whole"),
    _SharedByPositions,
)
"""Four consecutive positions share their acceptance number: one lucky draw keeps a whole draft."""

# coarse and constant numbers


class RoundedNumbers(Randomness):
    """Every number passes through a function that loses information."""

    def __init__(self, seed: int, stream: int, coarse: Callable[[Floats], Floats]) -> None:
        super().__init__(seed, stream)
        self._coarse = coarse

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] coarse numbers."""
        return np.asarray(self._coarse(super().uniforms(position, purpose, count, index)))


def _in_float16(numbers: Floats) -> Floats:
    return numbers.astype(np.float16).astype(np.float64)


FLOAT16_UNIFORMS = numbers_fault(
    "float16_uniforms",
    Origin(
        "none known: Infini-AI-Lab/Sequoia draws them so, by reading", "engine evidence", situation="unlikely_token"
    ),
    lambda seed, stream: RoundedNumbers(seed, stream, _in_float16),
)
"""Random numbers have half precision: some 10,000 values, 1.0 among them."""


def _in_24_bits(numbers: Floats) -> Floats:
    return np.asarray(np.floor(numbers * STEPS_OF_24_BITS) / STEPS_OF_24_BITS)


UNIFORMS_OF_24_BITS = numbers_fault(
    "uniforms_of_24_bits",
    Origin("vllm-project/vllm#51367", "engine evidence", situation="unlikely_token"),
    lambda seed, stream: RoundedNumbers(seed, stream, _in_24_bits),
)
"""Random numbers have 24 bits: tokens with a probability below one in 16 million come out too often or never."""


class _ZeroForAcceptance(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] zeros for acceptance, and the real numbers for every other purpose."""
        return np.zeros(count) if purpose is Purpose.ACCEPT else super().uniforms(position, purpose, count, index)


ZERO_ACCEPTS_EVERYTHING = numbers_fault(
    "zero_accepts_everything", Origin("vllm-project/vllm-ascend#13730", situation="kept_whole"), _ZeroForAcceptance
)
"""Every acceptance number is 0, so every drafted token of positive p is kept."""

# seeds, requests and keys

SEED_IGNORED = numbers_fault(
    "seed_ignored",
    Origin("vllm-project/vllm#6038, #10863", "engine evidence", "replay", situation="recovered_token"),
    lambda _seed, stream: Randomness(random.SystemRandom().getrandbits(63), stream),
    Suits(),
)
"""The request's seed is ignored: each run draws from the entropy of the operating system."""

REQUESTS_SHARE_NUMBERS = numbers_fault(
    "requests_share_numbers",
    Origin(
        "none known: what one seed for all requests gives in engines that key by the seed alone",
        situation="neighbour_joins",
    ),
    lambda seed, _stream: Randomness(seed, 0),
    Suits(needs=("several requests",)),
)
"""All requests of a run draw the same numbers, as if the run's seed were the only key."""


def _one_request_behind(parts: EngineParts) -> EngineParts:
    before: list[int] = []

    def numbers(seed: int, stream: int) -> Randomness:
        before.append(stream)
        return parts.numbers(seed, before[-2] if len(before) > 1 else stream)

    return replace(parts, numbers=numbers)


NUMBERS_OF_ANOTHER_REQUEST = Fault(
    name="numbers_of_another_request",
    breaks="replay",
    upstream="none known: a table of generators by row that is one request behind",
    seen_from="engine evidence",
    parts=("numbers",),
    apply=_one_request_behind,
    suits=Suits(needs=("several requests",)),
    situation="neighbour_joins",
)
"""Each request draws the random numbers of the request before it.

Every response follows the right law, but a request with a seed does not get the response of that seed.
"""


class _KeyedByDraw(Randomness):
    def __init__(self, seed: int, stream: int) -> None:
        super().__init__(seed, stream)
        self._drawn = 0

    def gumbel(self, position: int, vocabulary: int) -> Floats:  # noqa: ARG002 - the fault is to ignore the position
        """[vocabulary] the noise of the next draw."""
        self._drawn += 1
        return super().gumbel(self._drawn, vocabulary)


NOISE_KEYED_BY_DRAW = numbers_fault(
    "noise_keyed_by_draw",
    Origin(
        "none known: the first runner of vllm-project/vllm uses up numbers for tokens not kept, by reading",
        "text",
        "equality",
        situation="after_rejection",
    ),
    _KeyedByDraw,
    Suits((Protocol.GUMBEL,)),
    COUPLED,
)
"""The number of earlier draws keys the target's noise, not the position.

A rejected draft has used up its noise, so a sampled run never equals the plain run with the same seed.
"""
