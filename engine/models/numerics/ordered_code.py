"""Machine code for attention, norms, activations and rotations whose every sum has one order.

All operations are those that IEEE 754 rounds correctly: additions, products, quotients, roots, fused multiply-adds and
rounding to integers, in the order written here; LLVM may not reorder them. So a number's bits depend on its own inputs,
not on the shape of a call nor on the processor. Sums over a row have sixteen parts, by place modulo sixteen, which are
added in pairs at the end.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Final

from engine.models.numerics.machine_code import Code, compiled, fma, lines, spread, template

LANES: Final = 16

ATTEND: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 6, *[ctypes.c_int64] * 5, ctypes.c_float)
"""q and y [N, heads, D], keys and values of a layer, scratch, plan; N, KV heads, group, numbers to the next row and to
the next head; the factor of scores."""
NORM: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3, ctypes.c_float, ctypes.c_float)
"""x, gain, y; rows, width, gains that the rows have by turns; 1 / width and the floor."""
GATE: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
"""x [rows, 2 F] and y [rows, F]; rows and F."""
ROTATE: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)
"""x [rows, heads, D], cos and sin [rows, D], y as x; rows, heads, D, and numbers of x from one row to the next."""

LOG2E: Final = 1.4426950408889634
LN2_HIGH: Final = 0.693359375
"""Of few bits, so that its product with a small integer is exact."""
LN2_LOW: Final = math.log(2) - LN2_HIGH
SMALLEST: Final = -87.0
"""Below it exp counts as zero, so no result is subnormal."""


def number(value: float) -> str:
    """A float32 constant in LLVM's notation: the bits of the double with that value."""
    near = ctypes.c_float(value).value
    return f"0x{ctypes.c_uint64.from_buffer(ctypes.c_double(near)).value:016X}"


def vector(value: float) -> str:
    """The constant in every lane."""
    return f"splat (float {number(value)})"


# Taylor's series up to the sixth power: below 2 units in the last place for |r| <= ln 2 / 2
SERIES: Final = [1 / math.factorial(power) for power in range(6, -1, -1)]


def _series() -> str:
    steps = [f"%p0 = fadd <16 x float> zeroinitializer, {vector(SERIES[0])}"]
    steps += [fma(f"p{i}", f"%p{i - 1}", "%r", vector(each)) for i, each in enumerate(SERIES[1:], 1)]
    return lines(steps)


@dataclass(frozen=True, slots=True)
class HeadVector:
    """Sixteen numbers of a head, or the rest of one."""

    index: int
    dim: int

    @property
    def _mask(self) -> str:
        left = self.dim - self.index * LANES
        return "<" + ", ".join(f"i1 {'true' if lane < left else 'false'}" for lane in range(LANES)) + ">"

    def _at(self, name: str, pointer: str) -> str:
        return f"%at_{name}{self.index} = getelementptr float, ptr %{pointer}, i64 {self.index * LANES}"

    def load(self, name: str, pointer: str) -> list[str]:
        """Code that reads it, with zeros after a rest."""
        return [
            self._at(name, pointer),
            f"%{name}{self.index} = call <16 x float> @llvm.masked.load.v16f32.p0"
            f"(ptr %at_{name}{self.index}, i32 4, <16 x i1> {self._mask}, <16 x float> zeroinitializer)",
        ]

    def store(self, name: str, pointer: str) -> list[str]:
        """Code that writes it."""
        return [
            self._at(name, pointer),
            f"call void @llvm.masked.store.v16f32.p0"
            f"(<16 x float> %{name}{self.index}, ptr %at_{name}{self.index}, i32 4, <16 x i1> {self._mask})",
        ]


@cache
def attention_code(dim: int) -> Code | None:
    """`attend` for heads of `dim` numbers; None on a processor without fused vector multiply-adds."""
    count = -(-dim // LANES)
    load, dot, sums, terms, ends = [], [], [], [], []
    for i in range(count):
        part = HeadVector(i, dim)
        load += part.load("q", "q")
        before = f"%d{i - 1}" if i else "zeroinitializer"
        dot += [*part.load("k", "kp"), fma(f"d{i}", f"%q{i}", f"%k{i}", before)]
        sums.append(f"%y{i} = phi <16 x float> [zeroinitializer, %sum], [%z{i}, %valued]")
        terms += [*part.load("v", "vp"), fma(f"z{i}", "%nwv", f"%v{i}", f"%y{i}")]
        ends += [f"%o{i} = fdiv <16 x float> %z{i}, %denominatorv", *part.store("o", "y")]
    text = template("attention").substitute(
        dim=dim,
        last=count - 1,
        load_query=lines(load),
        dot=lines(dot),
        value_sums=lines(sums),
        value_terms=lines(terms),
        store_answer=lines(ends),
        spread_max=lines(spread("maxv", "max1", "float")),
        spread_scale=lines(spread("scalev", "scale", "float")),
        spread_weight=lines(spread("nwv", "nw", "float")),
        spread_denominator=lines(spread("denominatorv", "denominator", "float")),
    )
    return compiled(common() + text, {"attend": ATTEND}, inline=True)


@cache
def rows_code() -> Code | None:
    """`norm`, `gate` and `rotate`; None on a processor without fused vector multiply-adds."""
    text = template("rows").substitute(
        mask_left=mask("m", "left"),
        mask_jleft=mask("jm", "jleft"),
        spread_factor=lines(spread("factorv", "factor", "float")),
    )
    return compiled(common() + text, {"norm": NORM, "gate": GATE, "rotate": ROTATE}, inline=True)


def mask(name: str, left: str) -> str:
    """The first `left` lanes."""
    lanes = ", ".join(f"i64 {lane}" for lane in range(LANES))
    return lines([*spread(f"{name}v", left, "i64"), f"%{name} = icmp sgt <16 x i64> %{name}v, <{lanes}>"])


def common() -> str:
    """What both modules share."""
    return template("common").substitute(
        smallest=vector(SMALLEST),
        log2e=vector(LOG2E),
        minus_high=vector(-LN2_HIGH),
        minus_low=vector(-LN2_LOW),
        series=_series(),
    )
