"""Rotary frequencies and tables from decimal and integer arithmetic: the same bits on every machine.

Library powers, sines and cosines differ in the last bits. Here a frequency is computed to 60 digits and rounded once to
float64. Its rotations are computed in fixed point with 192 bits, by the Taylor series for one position and by repeated
turning for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from engine.models.numerics.interface import RopeTables

DIGITS = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
FRACTION = 192
ONE = 1 << FRACTION
BLOCK = 256
"""Positions whose rotations are computed one by one; further ones are turned by whole blocks."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """A cosine and a sine times 2^192."""

    cos: int
    sin: int

    def turned(self, by: Rotation) -> Rotation:
        """The rotation followed by another; each part is off by less than 2^-190."""
        cos = self.cos * by.cos - self.sin * by.sin
        sin = self.sin * by.cos + self.cos * by.sin
        return Rotation(cos >> FRACTION, sin >> FRACTION)


def frequencies(head_dim: int, rope: Mapping[str, Any]) -> list[float]:
    """[head_dim / 2] angle per position; llama3 slows down the waves longer than the original context.

    Args:
        head_dim: of one attention head.
        rope: `rope_type`, `rope_theta` above 0 and, for llama3, the scaling factors.
    """
    with localcontext() as context:
        context.prec = DIGITS
        slope = -Decimal(float(rope["rope_theta"])).ln() / head_dim
        plain = [(slope * index).exp() for index in range(0, head_dim, 2)]
        if rope["rope_type"] == "llama3":
            plain = [_slowed(item, rope) for item in plain]
        return [float(item) for item in plain]


def _slowed(frequency: Decimal, rope: Mapping[str, Any]) -> Decimal:
    factor, low, high, original = (
        Decimal(float(rope[field]))
        for field in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = original * frequency / (2 * PI)
    kept = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
    return frequency * (kept + (1 - kept) / factor)


def rotation(angle: float) -> Rotation:
    """The rotation by an angle of a few radians at most, by its Taylor series."""
    numerator, denominator = angle.as_integer_ratio()
    fixed = (numerator << FRACTION) // denominator
    parts, term, order = [0, 0], ONE, 0
    while term:
        # cosine and sine take turns, and each changes sign every second time
        parts[order % 2] += -term if order % 4 >= 2 else term
        order += 1
        term = (term * fixed >> FRACTION) // order
    return Rotation(*parts)


def turns(step: Rotation) -> Iterator[Rotation]:
    """No turn, one step, two steps, and so on."""
    current = Rotation(ONE, 0)
    while True:
        yield current
        current = current.turned(step)


def rope_tables(frequencies: Tensor, positions: int, dtype: torch.dtype) -> RopeTables:
    """Tables for positions 0 to `positions` - 1 and float64 `frequencies` [head_dim / 2], rounded to `dtype`.

    A position's rotation is the one of its block, followed by the one within the block. Both are correctly
    rounded float64 numbers, and three operations put them together: the error is below 2^-51.
    """
    blocks = -(-positions // BLOCK)
    within, whole = [], []
    for frequency in frequencies.tolist():
        fine = list(islice(turns(rotation(frequency)), BLOCK + 1))
        within.append(fine[:BLOCK])
        whole.append(list(islice(turns(fine[BLOCK]), blocks)))
    (near_cos, near_sin), (far_cos, far_sin) = _parts(within), _parts(whole)
    # [blocks, BLOCK, half]
    cos = (far_cos[:, None] * near_cos).sub_(far_sin[:, None] * near_sin).flatten(0, 1)[:positions]
    sin = (far_sin[:, None] * near_cos).add_(far_cos[:, None] * near_sin).flatten(0, 1)[:positions]
    return RopeTables(torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype))


def _parts(rows: list[list[Rotation]]) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float64 [turns, half] each, of rotations by frequency and number of turns.

    The quotient of two Python integers is correctly rounded.
    """
    cos = torch.tensor([[item.cos / ONE for item in row] for row in rows], dtype=torch.float64)
    sin = torch.tensor([[item.sin / ONE for item in row] for row in rows], dtype=torch.float64)
    return cos.T, sin.T
