"""Counter-based random streams: no state, no order, no sharing between purposes.

Every number is a function of (seed, stream, position, purpose, index) through Philox-4x64-10. Two purposes never share
a counter, so acceptance, residual, bonus and draft numbers are independent (the failure mode of vLLM issue 47386), and
a request draws the same numbers in every batch.
"""

from __future__ import annotations

import copy
import hashlib
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats
from engine.sampling.philox import first_word, first_words, round_keys, words_at


class Purpose(IntEnum):
    """The use of a number. Records store the name; the values are part of the format."""

    TARGET = 0
    """The target's own Gumbel noise: plain sampling and shared-randomness verification."""
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    INNER_DRAFT = 5
    """From here on: a draft model that is itself decoded speculatively (`engine.proposers.draft_model.cascade`)."""
    INNER_ACCEPT = 6
    INNER_RESIDUAL = 7
    INNER_BONUS = 8


STEP_SHIFT: Final = 16
"""The bit offset of a step's position in the last word of the counter, next to the purpose."""
_UPPER: Final = 11
_UNIT: Final = 2.0**-53
"""A word's upper 53 bits are a number in [0, 1)."""
Ints = NDArray[np.integer[Any]]


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
        self._rounds = round_keys(seed, stream)
        self._step = 0

    def of_step(self, position: int) -> Randomness:
        """The numbers of the step whose first token has this position; no other step shares them.

        Rules that read numbers behind the tokens they emit need them: the next step decides those positions again, and
        a number that was read once must not decide again.
        """
        fresh = copy.copy(self)
        fresh._step = position + 1
        return fresh

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] float64 numbers in [0, 1), 53 bits each."""
        last = purpose | self._step << STEP_SHIFT
        if count == 1:
            return np.array([(first_word(self._rounds, index, position, last) >> _UPPER) * _UNIT])
        counter = np.array([0, index, position, last], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter)).random(count)

    def uniform(self, position: int, purpose: Purpose, index: int = 0) -> float:
        """One number in [0, 1). `index` tells siblings at the same position apart."""
        return float(self.uniforms(position, purpose, 1, index)[0])

    def gumbel(self, position: int, vocabulary: int) -> Floats:
        """[vocabulary] standard Gumbel noise of purpose TARGET at a position."""
        numbers = self.uniforms(position, Purpose.TARGET, vocabulary)
        return _gumbels(numbers)


def _gumbels(numbers: NDArray[np.floating[Any]]) -> Floats:
    return np.asarray(-np.log(-np.log(np.clip(numbers, np.finfo(np.float64).tiny, 1.0 - 2.0**-53))))


def gumbel_at(seed: int, stream: int, positions: Ints, ids: Ints) -> Floats:
    """[n] the entry of a token in the noise of a position (`Randomness.gumbel`), for n places, up to rounding.

    The arguments are as in `uniforms_at`; `ids` [n] are tokens.
    """
    words = words_at(round_keys(seed, stream), ids.astype(np.uint64), positions.astype(np.uint64))
    return _gumbels((words >> np.uint64(_UPPER)) * _UNIT)


def uniforms_at(
    seed: int, stream: int, positions: Ints, purposes: Ints, indices: Ints | int = 0, steps: Ints | None = None
) -> Floats:
    """[n] the values of `Randomness(seed, stream).uniform` at n places, in a fraction of the time.

    Args:
        seed: as in `Randomness`.
        stream: as in `Randomness`.
        positions: [n] absolute positions.
        purposes: [n] values of `Purpose`, or -1 where nothing is drawn: the number is NaN there.
        indices: [n] or one for all.
        steps: [n] positions for a preceding `of_step` call; None without one.
    """
    drawn = purposes >= 0
    third = positions[drawn].astype(np.uint64)
    second = np.broadcast_to(np.asarray(indices), positions.shape)[drawn].astype(np.uint64)
    fourth = purposes[drawn].astype(np.uint64)
    if steps is not None:
        fourth |= (steps[drawn].astype(np.uint64) + np.uint64(1)) << np.uint64(STEP_SHIFT)
    words = first_words(round_keys(seed, stream), second, third, fourth)
    numbers = np.full(positions.shape, np.nan)
    numbers[drawn] = (words >> np.uint64(_UPPER)) * _UNIT
    return numbers
