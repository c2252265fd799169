"""Tests of recorded numbers: precision, coincidences, uniformity, independence.

Given all earlier draws, each number is uniform on [0, 1), whatever the decisions
were. So the product of a centred number with any earlier quantity has mean 0 and a
known variance, and the sum or difference of the two, modulo 1, is uniform again.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audit.stats.laws import normal_sf, poisson_sf
from audit.stats.pit import smooth_test
from engine.core.types import Floats

MIN_NUMBERS = 30
MIN_FOR_PRECISION = 8
"""This many numbers of 53 bits all end in 20 zeros with probability 2^-160."""
BITS = 53


@dataclass(frozen=True, slots=True)
class NumberTest:
    """One test with its p-value."""

    name: str
    n: int
    statistic: float
    p: float


def significant_bits(values: Floats) -> int:
    """The longest mantissa among `values` [n]: 11 for float16, 24 for float32, 53 for float64."""
    mantissa, _ = np.frexp(values)
    for bits in range(1, BITS):
        scaled = np.ldexp(mantissa, bits)
        if np.all(scaled == np.floor(scaled)):
            return bits
    return BITS


def coincidences(values: Floats) -> NumberTest:
    """Pairs of bit-identical numbers, against the birthday bound at their own precision.

    n numbers of b bits give n (n - 1) / 2^(b + 1) such pairs on average: 5e-5 for a million of 53 bits.
    """
    n = len(values)
    _, counts = np.unique(values, return_counts=True)
    pairs = int(np.sum(counts * (counts - 1) // 2))
    expected = n * (n - 1) / 2.0 ** (1 + significant_bits(values)) if n else 0.0
    return NumberTest("no number twice", n, float(pairs), float(poisson_sf(pairs - 1, expected)) if pairs else 1.0)


def repeated(values: Floats) -> frozenset[float]:
    """The numbers that occur more than once."""
    return frozenset(value for value, count in Counter(values.tolist()).items() if count > 1)


def uniformity(name: str, values: Floats, generator: np.random.Generator) -> Iterator[NumberTest]:
    """The smooth test of one purpose's numbers."""
    if len(values) >= MIN_NUMBERS:
        test = smooth_test(values, generator)
        yield NumberTest(f"{name} uniform", test.n, test.statistic, test.p)


def independence(name: str, first: Floats, second: Floats, generator: np.random.Generator) -> Iterator[NumberTest]:
    """Test that `second` [n] is uniform given `first` [n]."""
    n = len(first)
    if n < MIN_NUMBERS:
        return
    centred = first - 0.5
    variance = float(np.sum(centred**2)) / 12.0
    z = float(np.sum(centred * (second - 0.5))) / math.sqrt(variance) if variance > 0 else 0.0
    yield NumberTest(f"{name}: product", n, z, float(2.0 * normal_sf(abs(z))))
    for sign, word in ((-1.0, "difference"), (1.0, "sum")):
        test = smooth_test(np.mod(second + sign * first, 1.0), generator)
        yield NumberTest(f"{name}: {word}", n, test.statistic, test.p)
