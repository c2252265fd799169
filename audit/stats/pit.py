"""Randomised probability integral transform of tokens, and the smooth test of its uniformity.

If a token follows p given everything before it, then for any order of the vocabulary that is fixed before the token is
drawn, U = (mass before the token) + V p(token) with V uniform is itself uniform given the past. So the U of a run are
independent uniforms whatever the contexts were (Rosenblatt 1952; Dunn and Smyth 1996). Neyman's smooth test (1937) with
four Legendre polynomials has a chi-square limit with 4 degrees of freedom; below `EXACT_BELOW` numbers its law is
simulated instead. Cost: O(V) per token; a simulation is O(n * replicates).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.stats.laws import chi2_sf
from engine.core.types import Floats

DEGREES = 4
EXACT_BELOW = 500
REPLICATES = 10_000
_SCREEN = 0.1
_CHUNK = 2_000_000


@dataclass(frozen=True, slots=True)
class SmoothTest:
    """`components` [4] are standardised, their squares add up to `statistic`."""

    n: int
    statistic: float
    p: float
    components: tuple[float, ...]
    simulated: bool


@dataclass(frozen=True, slots=True)
class Intervals:
    """[E] each token's interval of the unit: the mass before it, and its own."""

    below: Floats
    own: Floats

    def at(self, v: Floats) -> Floats:
        """[E] the transforms, given independent uniforms `v` [E]."""
        return np.asarray(self.below + v * self.own)


def intervals(p: Floats, order: Floats, token: NDArray[np.int64]) -> Intervals:
    """The intervals of the tokens `token` [E].

    Args:
        p: [E, V] distributions.
        order: [E, V] keys; tokens with a larger key come first, lower ids first among equals.
        token: the tokens that were emitted.
    """
    rows = np.arange(len(token))
    own = order[rows, token][:, None]
    before = (order > own) | ((order == own) & (np.arange(p.shape[1]) < token[:, None]))
    return Intervals(np.where(before, p, 0.0).sum(axis=1), p[rows, token])


def pit(p: Floats, order: Floats, token: NDArray[np.int64], v: Floats) -> Floats:
    """[E] randomised PIT with independent uniforms `v` [E]; other arguments as of `intervals`."""
    return intervals(p, order, token).at(v)


def legendre(u: Floats) -> Floats:
    """[..., 4] orthonormal Legendre polynomials of degree 1 to 4 on [0, 1]."""
    x = 2.0 * np.clip(u, 0.0, 1.0) - 1.0
    polynomials = (
        np.sqrt(3.0) * x,
        np.sqrt(5.0) * (3.0 * x**2 - 1.0) / 2.0,
        np.sqrt(7.0) * (5.0 * x**3 - 3.0 * x) / 2.0,
        np.sqrt(9.0) * (35.0 * x**4 - 30.0 * x**2 + 3.0) / 8.0,
    )
    return np.stack(polynomials, axis=-1)


@dataclass(frozen=True, slots=True)
class SmoothSums:
    """The sums [4] of the polynomials over n numbers; `add` adds them one after the other, however they are divided."""

    n: int
    polynomials: Floats

    @classmethod
    def none(cls) -> SmoothSums:
        """Those of no numbers."""
        return cls(0, np.zeros(DEGREES))

    def add(self, u: Floats) -> SmoothSums:
        """With further numbers [m]."""
        return self.add_polynomials(legendre(u))

    def add_polynomials(self, polynomials: Floats) -> SmoothSums:
        """With those of further numbers [m, 4]."""
        if not len(polynomials):
            return self
        together = np.concatenate([self.polynomials[None], polynomials])
        return SmoothSums(self.n + len(polynomials), together.sum(axis=0))


def smooth_test(u: Floats, generator: np.random.Generator, replicates: int = REPLICATES) -> SmoothTest:
    """Test that `u` [n] are independent uniforms; see `smooth_test_of`."""
    return smooth_test_of(SmoothSums.none().add(u), generator, replicates)


def smooth_test_of(sums: SmoothSums, generator: np.random.Generator, replicates: int = REPLICATES) -> SmoothTest:
    """Test that the numbers behind the sums are independent uniforms.

    The law is simulated only if the chi-square limit gives less than 0.1: above
    that no decision depends on the difference.
    """
    n = sums.n
    if n == 0:
        return SmoothTest(0, 0.0, 1.0, (0.0,) * DEGREES, simulated=False)
    components = sums.polynomials / np.sqrt(n)
    statistic = float(np.sum(components**2))
    p = float(chi2_sf(statistic, DEGREES))
    simulated = n < EXACT_BELOW and p < _SCREEN
    if simulated:
        p = _simulated_p(statistic, n, generator, replicates)
    return SmoothTest(n, statistic, p, tuple(float(component) for component in components), simulated)


def _simulated_p(statistic: float, n: int, generator: np.random.Generator, replicates: int) -> float:
    """(1 + b) / (1 + B) under uniform numbers."""
    above, left = 0, replicates
    while left:
        rows = min(left, max(1, _CHUNK // n))
        above += int(np.sum(_statistics(generator.random((rows, n))) >= statistic))
        left -= rows
    return (1 + above) / (1 + replicates)


def _statistics(u: Floats) -> Floats:
    """[rows] the statistic of each row of `u` [rows, n], from power sums: faster than the polynomials."""
    n = u.shape[1]
    x = 2.0 * u - 1.0
    squared = x * x
    first, second = x.sum(axis=1), squared.sum(axis=1)
    third, fourth = np.einsum("ij,ij->i", squared, x), np.einsum("ij,ij->i", squared, squared)
    components = (
        np.sqrt(3.0) * first,
        np.sqrt(5.0) * (3.0 * second - n) / 2.0,
        np.sqrt(7.0) * (5.0 * third - 3.0 * first) / 2.0,
        np.sqrt(9.0) * (35.0 * fourth - 30.0 * second + 3.0 * n) / 8.0,
    )
    return np.asarray(sum(component**2 for component in components) / n)
