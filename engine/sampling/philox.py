"""The first word of Philox-4x64-10 blocks, for one counter or for an array of them.

Numpy's own generator gives the same words, but making one costs more than ten
rounds by hand, and a replay reads one number from each of many counters. Source:
Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011). Numpy adds one to a counter before its first block and gives the words
of a block in order; a double is a word's upper 53 bits times 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Product:
    """A 128-bit product in two words."""

    high: Words
    low: Words


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
    a, b, c, d = np.ones_like(second), second, third, fourth
    for one, other in keys:
        x, y = _product(MULTIPLIERS[0], a), _product(MULTIPLIERS[1], c)
        a, b, c, d = y.high ^ b ^ np.uint64(one), y.low, x.high ^ d ^ np.uint64(other), x.low
    return a


def words_at(keys: RoundKeys, ids: Words, third: Words) -> Words:
    """[n] the words numbered `ids` of the sequences that numpy's generator gives at counters (0, 0, third, 0)."""
    a, b, c, d = (ids >> np.uint64(2)) + np.uint64(1), np.zeros_like(ids), third, np.zeros_like(ids)
    for one, other in keys:
        x, y = _product(MULTIPLIERS[0], a), _product(MULTIPLIERS[1], c)
        a, b, c, d = y.high ^ b ^ np.uint64(one), y.low, x.high ^ d ^ np.uint64(other), x.low
    return np.asarray(np.choose((ids & np.uint64(3)).astype(np.int64), (a, b, c, d)))


def _product(factor: int, words: Words) -> _Product:
    """From products of 32-bit halves, none of whose sums overflows."""
    wide, halves = np.uint64(factor), (np.uint64(factor & int(_LOW)), np.uint64(factor >> BITS // 2))
    low, high = words & _LOW, words >> _HALF
    cross = halves[0] * high
    middle = (halves[0] * low >> _HALF) + (cross & _LOW) + halves[1] * low
    return _Product(halves[1] * high + (cross >> _HALF) + (middle >> _HALF), wide * words)
