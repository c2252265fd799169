"""The first word of Philox-4x64-10 blocks, for one counter or for an array of them.

Numpy's own generator gives the same words, but making one costs more than ten rounds by hand, and a replay reads one
number from each of many counters. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011). Numpy adds one to a counter before its first block and gives the words of a block in order; a double is a
word's upper 53 bits times 2^-53.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

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
