"""exp, the gated activation and the norm out of correctly rounded float64 operations only.

Library versions of exp differ in the last bits between instruction sets. Here
every step is an addition, product, quotient, root, rounding or table look-up in
a torch call of its own, and the table and the constants come from decimal
arithmetic, so the answer is the same wherever IEEE 754 holds.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from engine.models.numerics.exact_sums.fixed_point import sum_of_squares

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
