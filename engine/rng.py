"""Counter-based random streams: no state, no order, no sharing between purposes.

Every number is a function of (seed, stream, position, purpose, index) through
Philox-4x64-10. Two purposes never share a counter, so acceptance, residual,
bonus and draft numbers are independent (the failure mode of vLLM issue 47386),
and a request draws the same numbers whatever else runs beside it.

Knows nothing about distributions or tokens.
"""

from __future__ import annotations

import copy
import hashlib
from enum import IntEnum
from typing import Final

import numpy as np

from engine.types import Floats


class Purpose(IntEnum):
    """What a number is for. Recorded by name; the values are part of the format."""

    TARGET = 0
    """The target's own Gumbel noise: plain sampling and shared-randomness verification."""
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    INNER_DRAFT = 5
    """From here on: a draft model that is itself decoded speculatively, with rejection (`engine.proposers.cascade`)."""
    INNER_ACCEPT = 6
    INNER_RESIDUAL = 7
    INNER_BONUS = 8


STEP_SHIFT: Final = 16
"""Where a step's position stands beside the purpose in the last word of the counter."""


def stream_of(name: str) -> int:
    """A 64-bit stream number from a case's name, stable across arms and machines."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


class Randomness:
    """The random numbers of one request.

    Args:
        seed: the run's seed, in [0, 2^63).
        stream: the request's stream, in [0, 2^64).
    """

    def __init__(self, seed: int, stream: int) -> None:
        self._seed, self._stream = seed, stream
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._step = 0

    def of_step(self, position: int) -> Randomness:
        """Numbers of the step whose first token has this position, which no other step shares.

        For rules whose decisions look at numbers behind the tokens that they emit: those positions are decided
        again in the next step, and a number that has been looked at must not decide again.
        """
        fresh = copy.copy(self)
        fresh._step = position + 1
        return fresh

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] float64 numbers in [0, 1), 53 bits each."""
        counter = np.array([0, index, position, purpose | self._step << STEP_SHIFT], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter)).random(count)

    def uniform(self, position: int, purpose: Purpose, index: int = 0) -> float:
        """One number in [0, 1). `index` tells siblings at the same position apart."""
        return float(self.uniforms(position, purpose, 1, index)[0])

    def gumbel(self, position: int, vocabulary: int) -> Floats:
        """[vocabulary] standard Gumbel noise of purpose TARGET at a position."""
        numbers = self.uniforms(position, Purpose.TARGET, vocabulary)
        return -np.log(-np.log(np.clip(numbers, np.finfo(np.float64).tiny, 1.0 - 2.0**-53)))
