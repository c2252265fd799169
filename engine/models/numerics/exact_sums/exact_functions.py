"""exp, the gated activation and the norm out of correctly rounded float64 operations only.

Library versions of exp differ in the last bits between instruction sets. Here
every step is an addition, product, quotient, root, rounding or table look-up in
a torch call of its own, and the table and the constants come from decimal
arithmetic, so the answer is the same wherever IEEE 754 holds.

Numbers on grids, so that sums of products are exact in any order.

A row is rounded to integers of a few bits times one power of two. A product of
two such numbers is again an integer times a power of two, and as long as no
partial sum exceeds 2^53 in magnitude every addition is exact in float64:
blocking, vector width, fused multiply-adds and threads cannot matter. Each
operation here is one that IEEE 754 defines to the bit, in a torch call of its
own, so that no compiler can contract two of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

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


DIGITS = 50
STEPS = 128
"""Table entries per factor of two."""
OCTAVES = 60
"""exp is taken as zero below about 2^-60."""
HIGH_BITS = 47
"""The high part of ln 2 / 128 is a multiple of 2^-47: 40 bits, so times an index of 13 bits it is exact."""
TAYLOR = tuple(1.0 / math.factorial(order) for order in (5, 4, 3, 2))
"""On |r| <= ln 2 / 256 the first term left out, r^6 / 720, is below 2^-60."""


class Exponential:
    """exp(x) for x <= 0: 2^(n / 128) from a table, times a short polynomial in what is left of x.

    The error is below 2 units in the last place for x >= -41.58; below about 2^-60 the answer is zero.
    NaN stays NaN, minus infinity gives zero.
    """

    def __init__(self) -> None:
        with localcontext() as context:
            context.prec = DIGITS
            step = Decimal(2).ln() / STEPS
            octave = [float((-step * index).exp()) for index in range(STEPS)]
            self._high = math.floor(step * 2**HIGH_BITS) * 2.0**-HIGH_BITS
            self._low = float(step - Decimal(self._high))
            self._per_step = float(1 / step)
        # dividing by a power of two is exact, so every entry is correctly rounded
        entries = [math.ldexp(value, -shift) for shift in range(OCTAVES) for value in octave]
        table = torch.tensor([*entries, 0.0], dtype=torch.float64)
        self._tables = {table.device: table}
        self._smallest = -OCTAVES * STEPS * (self._high + self._low)

    def __call__(self, x: Tensor) -> Tensor:
        """The exponential of a float64 tensor of numbers <= 0; may overwrite x."""
        x = x.clamp_(min=self._smallest)
        steps = (x * self._per_step).round_()
        rest = x.sub_(steps * self._high).sub_(steps * self._low)
        series = rest * TAYLOR[0]
        for coefficient in (*TAYLOR[1:], 1.0):
            series.add_(coefficient).mul_(rest)
        table = self._table(x.device)
        # a NaN has no index; the series carries it on
        index = steps.neg_().to(torch.int64).clamp_(0, len(table) - 1)
        return series.add_(1.0).mul_(table.take(index))

    def _table(self, device: torch.device) -> Tensor:
        if device not in self._tables:
            self._tables[device] = self._tables[torch.device("cpu")].to(device)
        return self._tables[device]


def gated(gate_up: Tensor, exponential: Exponential) -> Tensor:
    """float64 silu(gate) * up for [N, 2 F] -> [N, F]; silu(x) = x / (1 + exp(-x)), zero below x = -41.58."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    small = exponential(gate.abs().neg_())
    share = torch.where(gate < 0, small, 1.0).div_(small + 1.0)
    return share.mul_(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """float64 x / sqrt(mean of x^2 + eps), times `weight`, over the last dimension."""
    wide = x.double()
    mean = sum_of_squares(wide).mul_(1.0 / x.shape[-1])
    normed = wide / mean.add_(eps).sqrt_()
    return normed if weight is None else normed.mul_(weight)
