"""The same bits on every machine, by construction: sums on grids, and no library function.

Every sum, of matrix products, attention and norms, is a sum of integers below 2^53 times a power of two, hence exact in
any order; all other operations are correctly rounded float64 ones, one torch call each. A logit therefore does not
depend on shape, batch, tree, thread count, instruction set or machine. What the grids cost in accuracy is in
docs/numerics.md.

The functions: exp, the gated activation and the norm out of correctly rounded float64 operations only.

Library versions of exp differ in the last bits between instruction sets. Here every step is an addition, product,
quotient, root, rounding or table look-up in a torch call of its own, and the table and the constants come from decimal
arithmetic, so the answer is the same wherever IEEE 754 holds.

Numbers on grids, so that sums of products are exact in any order.

A row is rounded to integers of a few bits times one power of two. A product of two such numbers is again an integer
times a power of two, and as long as no partial sum exceeds 2^53 in magnitude every addition is exact in float64:
blocking, vector width, fused multiply-adds and threads cannot matter. Each operation here is one that IEEE 754 defines
to the bit, in a torch call of its own, so that no compiler can contract two of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.cache import CacheShape, CacheViews, TensorSlotCache
from engine.models.interface import Placement
from engine.models.numerics import interface
from engine.models.numerics.layouts import (
    MaskedLayout,
    additive_mask,
    batch_rows,
    grouped,
    is_alone,
    padding,
    ungrouped,
)
from engine.models.numerics.rotations import rope_tables

VALUE_BITS = 20
"""Bits of a value in the cache; the softmax weights get the bits of 2^53 that the context's columns leave."""
LARGEST_CONTEXT = 1 << 17
"""Beyond it fewer than 16 bits would be left for a softmax weight."""
SMALLEST_BIAS = 2.0**-100
SIGNIFICAND = 53
"""Integers up to 2^53 in magnitude are float64 numbers."""
EXPONENT_FIELD = 0x7FF0000000000000
SMALLEST_PEAK = 2.0**-40
"""Rows smaller than this share its grid: a product then is zero or far above the subnormal numbers of float32."""
SMALLEST_WEIGHT_PEAK = 2.0**-30
DIGITS = 50
STEPS = 128
"""Table entries per factor of two."""
OCTAVES = 60
"""exp is taken as zero below about 2^-60."""
HIGH_BITS = 47
"""The high part of ln 2 / 128 is a multiple of 2^-47: 40 bits, so times an index of 13 bits it is exact."""
TAYLOR = tuple(1.0 / math.factorial(order) for order in (5, 4, 3, 2))
"""On |r| <= ln 2 / 256 the first term left out, r^6 / 720, is below 2^-60."""


class ExactCache(TensorSlotCache):
    """Keys and values in float64 on grids; after each value stands the unit of its grid.

    A value's numbers are stored divided by that unit, so they are integers times one power of two
    that all tokens share.
    """

    def __init__(self, shape: CacheShape) -> None:
        wide = replace(shape, value_dim=shape.head_dim + 1)
        super().__init__(wide, torch.float64)
        self._width = wide.value_dim

    def write(self, layer: int, opened: CacheViews, keys: Tensor, values: Tensor) -> None:
        """Store keys, already on their grids, and values [N, kv_heads, head_dim] of any dtype."""
        wide = values.to(torch.float64, copy=True)
        unit = row_unit(wide)
        super().write(layer, opened, keys, torch.cat([on_grid(wide.div_(unit), 1.0, VALUE_BITS), unit], -1))


class ExactNumerics:
    """Fixed-point sums, and float64 functions of our own."""

    name = "exact"
    promises = interface.Invariance.EVERYWHERE
    most_tree_nodes: int | None = None

    def __init__(self) -> None:
        self._exponential = Exponential()

    def matrix(self, affine: interface.Affine) -> interface.Matrix:
        """Both factors on grids, a float64 product, the bias added and all rounded once to the weight's dtype."""
        bits, dtype = factor_bits(affine.weight.shape[1]), affine.weight.dtype
        weight = gridded(affine.weight, bits.right, SMALLEST_WEIGHT_PEAK)
        # numbers that are zero or at least 2^-100, so that sums with them never become subnormal
        bias = None if affine.bias is None else affine.bias.double()
        bias = None if bias is None else torch.where(bias.abs() < SMALLEST_BIAS, 0.0, bias)

        def multiply(x: Tensor) -> Tensor:
            product = F.linear(gridded(x, bits.left), weight)
            return (product if bias is None else product.add_(bias)).to(dtype)

        return multiply

    def norm(self, weight: Tensor | None, eps: float, width: int) -> interface.Norm:  # noqa: ARG002 - the protocol's
        """In float64 with an exact sum of squares, rounded once to x's dtype."""
        return lambda x: rms_norm(x, weight, eps).to(x.dtype)

    def joined(self, layers: Sequence[interface.DecoderLayer], heads: interface.HeadSizes) -> interface.Layers | None:  # noqa: ARG002 - the protocol's
        """Call by call."""
        return None

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up in float64; the next product puts it on its grid."""
        return gated(gate_up, self._exponential)

    def rotate(self, x: Tensor, rope: interface.RopeTables) -> Tensor:
        """Rotary embedding in float64, each vector then on a grid of its own."""
        half = x.shape[-1] // 2
        swapped = torch.cat([x[..., half:], x[..., :half]], -1).double()
        turned = (x.double() * rope.cos).add_(swapped.mul_(rope.sin))
        return gridded(turned, factor_bits(x.shape[-1]).right)

    def rope(self, frequencies: Tensor, positions: int, dtype: torch.dtype) -> interface.RopeTables:
        """From integer arithmetic; float32 tables for narrower models too."""
        return rope_tables(frequencies, positions, torch.float64 if dtype is torch.float64 else torch.float32)

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:  # noqa: ARG002 - the protocol's
        """Tables in float64 for every dtype of the model."""
        return ExactCache(shape)

    def layout(self, placement: Placement, heads: interface.HeadSizes, dtype: torch.dtype) -> interface.AttentionLayout:  # noqa: ARG002 - the protocol's
        """A mask only where something is hidden.

        Raises:
            ModelError: the context has more columns than can be summed exactly with enough bits for each.
        """
        if heads.context > LARGEST_CONTEXT:
            raise ModelError(
                f"numerics exact: a context of {heads.context} exceeds {LARGEST_CONTEXT} columns; "
                "use numerics tiled, or lower max_position_embeddings in config.json"
            )
        pads = padding(placement)
        if is_alone(placement, pads):
            return MaskedLayout(placement, heads, pads, None)
        mask = additive_mask(placement, pads, placement.span, torch.float64)
        return MaskedLayout(placement, heads, pads, mask[:, None, :, None])

    def windows(self, cache: TensorSlotCache, layout: interface.AttentionLayout) -> Sequence[interface.AttentionWindow]:
        """Keys [B * kv_heads, head_dim, columns] and values [B * kv_heads, columns, head_dim + 1]."""
        rows, span = batch_rows(layout.placement), layout.placement.span
        keys = cache.all_keys[:, rows, :, :span].flatten(1, 2).transpose(2, 3).unbind()
        values = cache.all_values[:, rows, :, :span].flatten(1, 2).unbind()
        return [interface.AttentionWindow(key, (value,)) for key, value in zip(keys, values, strict=True)]

    def attend(self, queries: Tensor, window: interface.AttentionWindow, layout: interface.AttentionLayout) -> Tensor:
        """Explicit attention; numerator and denominator are exact sums over the columns."""
        assert isinstance(layout, MaskedLayout)
        pads, heads = layout.pads, layout.heads
        scores = torch.bmm(grouped(queries, pads, heads), window.keys)
        weights = self._weights(masked(scores.mul_(1.0 / math.sqrt(heads.head_dim)), layout.mask))
        return ungrouped(weighted_sum(weights, window.values[0], heads), pads, heads)

    def _weights(self, scores: Tensor) -> Tensor:
        """exp(score - largest score); the largest depends on the visible columns only."""
        return self._exponential(scores.sub_(scores.amax(-1, keepdim=True)))


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores [B * kv_heads, width * group, columns], minus infinity where the column is hidden; in place."""
    if mask is not None:
        batch, width = mask.shape[0], mask.shape[2]
        scores.view(batch, -1, width, scores.shape[1] // width, scores.shape[2]).add_(mask)
    return scores


def weighted_sum(weights: Tensor, values: Tensor, heads: interface.HeadSizes) -> Tensor:
    """The values' mean by weight: exact sums of products and of weights, and one quotient.

    Args:
        weights: [M, queries, columns] at most 1, of which each row reaches it; zero where hidden.
        values: [M, columns, head_dim + 1] as `ExactCache` holds them.
        heads: of the model; its context bounds the number of columns that a sum can ever have.

    A weight is multiplied by its value's unit, then all of a query are put on one grid: that of the largest
    product, which depends on the visible columns only. Hidden columns and their number add exact zeros.
    """
    spare = SIGNIFICAND - (heads.context - 1).bit_length()
    total = on_grid(weights, 1.0, spare).sum(-1, keepdim=True)
    scaled = weights.mul_(values[..., heads.head_dim].unsqueeze(1))
    scaled = on_grid(scaled, row_unit(scaled), spare - VALUE_BITS)
    return torch.bmm(scaled, values[..., : heads.head_dim]).div_(total)


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
