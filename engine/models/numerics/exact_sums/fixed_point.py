"""Numbers on grids, so that sums of products are exact in any order.

A row is rounded to integers of a few bits times one power of two. A product of
two such numbers is again an integer times a power of two, and as long as no
partial sum exceeds 2^53 in magnitude every addition is exact in float64:
blocking, vector width, fused multiply-adds and threads cannot matter. Each
operation here is one that IEEE 754 defines to the bit, in a torch call of its
own, so that no compiler can contract two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIGNIFICAND = 53
"""Integers up to 2^53 in magnitude are float64 numbers."""
EXPONENT_FIELD = 0x7FF0000000000000
SMALLEST_PEAK = 2.0**-40
"""Rows smaller than this share its grid: a product then is zero or far above the subnormal numbers of float32."""
SMALLEST_WEIGHT_PEAK = 2.0**-30


@dataclass(frozen=True, slots=True)
class FactorBits:
    """The numbers of bits of the two factors of a sum of products."""

    left: int
    right: int


def factor_bits(terms: int) -> FactorBits:
    """The finest grids of both factors whose sum of `terms` products stays exact.

    Integers of `left` and `right` bits have magnitudes up to 2^left and 2^right, ends included,
    so the sum is at most terms * 2^(left + right) <= 2^53.
    """
    budget = SIGNIFICAND - (terms - 1).bit_length()
    return FactorBits(budget - budget // 2, budget // 2)


def power_of_two(x: Tensor) -> Tensor:
    """The largest power of two that is not above |x|, for normal float64 x; overwrites x."""
    return x.view(torch.int64).bitwise_and_(EXPONENT_FIELD).view(torch.float64)


def row_unit(x: Tensor, smallest: float = SMALLEST_PEAK) -> Tensor:
    """[..., 1] twice the power of two at or below each row's largest magnitude, which so bounds the row."""
    peak = x.abs().amax(-1, keepdim=True).clamp_(min=smallest)
    return power_of_two(peak).mul_(2.0)


def on_grid(x: Tensor, unit: Tensor | float, bits: int) -> Tensor:
    """Numbers rounded, half to even, to multiples of unit * 2^-bits, where |x| <= unit = a power of two.

    Adding 1.5 * 2^52 steps moves x to where float64 numbers lie one step apart; taking it off again is exact.
    """
    shift = unit * (1.5 * 2.0 ** (SIGNIFICAND - 1 - bits))
    return (x + shift).sub_(shift)


def gridded(x: Tensor, bits: int, smallest: float = SMALLEST_PEAK) -> Tensor:
    """float64 rows of x [..., n], each on a grid of `bits` bits of its own."""
    wide = x.double()
    return on_grid(wide, row_unit(wide, smallest), bits)


def sum_of_squares(x: Tensor) -> Tensor:
    """[..., 1] the sum of the squares of each float64 row, rounded to a grid before it is squared."""
    rows = gridded(x, factor_bits(x.shape[-1]).right)
    return rows.mul_(rows).sum(-1, keepdim=True)
