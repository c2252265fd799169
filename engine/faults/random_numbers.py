"""Faults of random numbers: numbers that are coarse, reused, shared between requests or keyed by the wrong thing."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from engine.core.types import Floats, Protocol
from engine.decode.seams import EngineParts, NumbersOf
from engine.faults.interface import CHAIN_ONLY, COUPLED, ChangeParts, Fault, Suits
from engine.sampling.rng import Purpose, Randomness

SHARING: Final = 4
"""The number of consecutive positions that share an acceptance number."""
STEPS_OF_24_BITS: Final = 2.0**24


def with_numbers(numbers: NumbersOf) -> ChangeParts:
    """Replace the random numbers of every request."""
    return lambda parts: replace(parts, numbers=numbers)


# one number for two decisions


class ReusedNumbers(Randomness):
    """One purpose draws the numbers of another."""

    def __init__(self, seed: int, stream: int, purpose: Purpose, other: Purpose) -> None:
        super().__init__(seed, stream)
        self._purpose, self._other = purpose, other

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers; those of the other purpose if `purpose` is the confused one."""
        return super().uniforms(position, self._other if purpose is self._purpose else purpose, count, index)


ONE_NUMBER_ACCEPT_AND_RESIDUAL = Fault(
    "vllm-project/vllm-ascend#16370",
    with_numbers(partial(ReusedNumbers, purpose=Purpose.RESIDUAL, other=Purpose.ACCEPT)),
    CHAIN_ONLY,
    situation="recovered_token",
)
"""The number that rejected a token draws its replacement too: the acceptance rate is right, the law is not."""

RESIDUAL_REUSES_DRAFT_NUMBER = Fault(
    "vllm-project/vllm#47386, #54282",
    with_numbers(partial(ReusedNumbers, purpose=Purpose.RESIDUAL, other=Purpose.DRAFT)),
    CHAIN_ONLY,
    situation="recovered_token",
)
"""The number that drew a rejected token draws its replacement too."""


class _SharedByPositions(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers; an acceptance number is that of the first position of its group."""
        if purpose is Purpose.ACCEPT:
            position -= position % SHARING
        return super().uniforms(position, purpose, count, index)


NUMBER_REUSED_ACROSS_POSITIONS = Fault(
    "none known: a number drawn per request where one per position is needed",
    with_numbers(_SharedByPositions),
    CHAIN_ONLY,
    situation="kept_whole",
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


FLOAT16_UNIFORMS = Fault(
    "none known: Infini-AI-Lab/Sequoia draws them so, by reading",
    with_numbers(partial(RoundedNumbers, coarse=lambda numbers: numbers.astype(np.float16).astype(np.float64))),
    CHAIN_ONLY,
    seen_from="engine evidence",
    situation="unlikely_token",
)
"""Random numbers have half precision: some 10,000 values, 1.0 among them."""


UNIFORMS_OF_24_BITS = Fault(
    "vllm-project/vllm#51367",
    with_numbers(
        partial(RoundedNumbers, coarse=lambda numbers: np.floor(numbers * STEPS_OF_24_BITS) / STEPS_OF_24_BITS)
    ),
    CHAIN_ONLY,
    seen_from="engine evidence",
    situation="unlikely_token",
)
"""Random numbers have 24 bits: tokens with a probability below one in 16 million come out too often or never."""


class _ZeroForAcceptance(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] zeros for acceptance, and the real numbers for every other purpose."""
        return np.zeros(count) if purpose is Purpose.ACCEPT else super().uniforms(position, purpose, count, index)


ZERO_ACCEPTS_EVERYTHING = Fault(
    "vllm-project/vllm-ascend#13730", with_numbers(_ZeroForAcceptance), CHAIN_ONLY, situation="kept_whole"
)
"""Every acceptance number is 0, so every drafted token of positive p is kept."""

# seeds, requests and keys

SEED_IGNORED = Fault(
    "vllm-project/vllm#6038, #10863",
    with_numbers(lambda _seed, stream: Randomness(random.SystemRandom().getrandbits(63), stream)),
    breaks="replay",
    seen_from="engine evidence",
    situation="recovered_token",
)
"""The request's seed is ignored: each run draws from the entropy of the operating system."""

REQUESTS_SHARE_NUMBERS = Fault(
    "none known: what one seed for all requests gives in engines that key by the seed alone",
    with_numbers(lambda seed, _stream: Randomness(seed, 0)),
    Suits(needs=("several requests",)),
    situation="neighbour_joins",
)
"""All requests of a run draw the same numbers, as if the run's seed were the only key."""


def _one_request_behind(parts: EngineParts) -> EngineParts:
    before: list[int] = []

    def numbers(seed: int, stream: int) -> Randomness:
        before.append(stream)
        return parts.numbers(seed, before[-2] if len(before) > 1 else stream)

    return replace(parts, numbers=numbers)


NUMBERS_OF_ANOTHER_REQUEST = Fault(
    "none known: a table of generators by row that is one request behind",
    _one_request_behind,
    Suits(needs=("several requests",)),
    breaks="replay",
    seen_from="engine evidence",
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


NOISE_KEYED_BY_DRAW = Fault(
    "none known: the first runner of vllm-project/vllm uses up numbers for tokens not kept, by reading",
    with_numbers(_KeyedByDraw),
    Suits((Protocol.GUMBEL,)),
    COUPLED,
    breaks="equality",
    situation="after_rejection",
)
"""The number of earlier draws keys the target's noise, not the position.

A rejected draft has used up its noise, so a sampled run never equals the plain run with the same seed.
"""
