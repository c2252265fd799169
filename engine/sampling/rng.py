"""Counter-based random streams: no state, no order, no sharing between purposes.

Every number is a function of (seed, stream, position, purpose, index) through Philox-4x64-10. Two purposes never share
a counter, so acceptance, residual, bonus and draft numbers are independent (the failure mode of vLLM issue 47386), and
a request draws the same numbers in every batch.

The first word of Philox-4x64-10 blocks is computed here, for one counter or for an array of them: numpy's own generator
gives the same words, but making one costs more than ten rounds by hand, and a replay reads one number from each of many
counters. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Numpy adds one
to a counter before its first block and gives the words of a block in order; a double is a word's upper 53 bits times
2^-53.
"""

from __future__ import annotations

import copy
import hashlib
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats

MULTIPLIERS: Final = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL: Final = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
ROUNDS: Final = 10
BITS: Final = 64
WORD: Final = 2**BITS - 1
Words = NDArray[np.uint64]
RoundKeys = tuple[tuple[int, int], ...]
_HALF: Final = np.uint64(BITS // 2)
_LOW: Final = np.uint64(2 ** (BITS // 2) - 1)
_FACTORS: Final = np.array(MULTIPLIERS, np.uint64)[:, None]
_FACTOR_LOW: Final = _FACTORS & _LOW
_FACTOR_HIGH: Final = _FACTORS >> _HALF


def round_keys(first: int, second: int) -> RoundKeys:
    """A key's two words in each of the ten rounds."""
    return tuple(((first + i * WEYL[0]) & WORD, (second + i * WEYL[1]) & WORD) for i in range(ROUNDS))


def first_word(keys: RoundKeys, second: int, third: int, fourth: int) -> int:
    """The word that numpy's generator gives first at counter (0, second, third, fourth)."""
    a, b, c, d = 1, second & WORD, third & WORD, fourth & WORD
    left, right = MULTIPLIERS
    for one, other in keys[:-1]:
        x, y = left * a, right * c
        a, b, c, d = (y >> BITS) ^ b ^ one, y & WORD, (x >> BITS) ^ d ^ other, x & WORD
    return (right * c >> BITS) ^ b ^ keys[-1][0]


def first_words(keys: RoundKeys, second: Words, third: Words, fourth: Words) -> Words:
    """[n] `first_word` of n counters, from three columns [n]."""
    state = _State.of(np.ones_like(second), second, third, fourth)
    for key in keys:
        state.round(key)
    return np.asarray(state.left[0])


def words_at(keys: RoundKeys, ids: Words, third: Words) -> Words:
    """[n] the words numbered `ids` of the sequences that numpy's generator gives at counters (0, 0, third, 0)."""
    zero = np.zeros_like(ids)
    state = _State.of((ids >> np.uint64(2)) + np.uint64(1), zero, third, zero)
    for key in keys:
        state.round(key)
    (a, c), (b, d) = state.left, state.right
    return np.asarray(np.choose((ids & np.uint64(3)).astype(np.int64), (a, b, c, d)))


class _State:
    """The words of n blocks between rounds: `left` [2, n] the first and the third, `right` [2, n] the others.

    Both products of a round are computed together and in place, because most of the cost is that of numpy's calls.
    """

    __slots__ = ("_cross", "_high", "_low", "_middle", "left", "right")

    def __init__(self, left: Words, right: Words) -> None:
        self.left, self.right = left, right
        self._low, self._high, self._cross, self._middle = (np.empty_like(left) for _ in range(4))

    @classmethod
    def of(cls, a: Words, b: Words, c: Words, d: Words) -> _State:
        """The blocks with these words [n]."""
        return cls(np.stack([a, c]), np.stack([b, d]))

    def round(self, key: tuple[int, int]) -> None:
        """One round: 128-bit products from products of 32-bit halves, none of whose sums overflows."""
        low, high, cross, middle = self._low, self._high, self._cross, self._middle
        np.bitwise_and(self.left, _LOW, out=low)
        np.right_shift(self.left, _HALF, out=high)
        np.multiply(high, _FACTOR_LOW, out=cross)
        np.multiply(low, _FACTOR_LOW, out=middle)
        middle >>= _HALF
        low *= _FACTOR_HIGH
        middle += low
        middle += np.bitwise_and(cross, _LOW, out=low)
        middle >>= _HALF
        cross >>= _HALF
        high *= _FACTOR_HIGH
        high += cross
        high += middle
        self.left *= _FACTORS
        self.right ^= high[::-1]
        self.right ^= np.array(key, np.uint64)[:, None]
        # the low halves become the other words, the other words the new ones
        self.left, self.right = self.right, self.left[::-1]


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
        return _gumbels(self.uniforms(position, Purpose.TARGET, vocabulary))


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
