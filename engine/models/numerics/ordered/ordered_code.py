"""Machine code for attention, norms, activations and rotations whose every sum has one order.

All operations are those that IEEE 754 rounds correctly: additions, products, quotients, roots, fused multiply-adds and
rounding to integers, in the order written here; LLVM may not reorder them. So a number's bits depend on its own inputs,
not on the shape of a call nor on the processor. Sums over a row have sixteen parts, by place modulo sixteen, which are
added in pairs at the end.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from engine.models.numerics.ordered.machine_code import Code, compiled, first_lanes, fma, lines, spread, template

LANES: Final = 16
MOST_QUERIES: Final = 2
"""Queries of a group that are answered together, so that one's sums go on while the other's wait."""
SMALL_HEAD: Final = 48
"""Largest head of which the sums of so many queries fit into 16 registers."""

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
    steps += [fma(f"p{i}", f"%p{i - 1}", "%r", vector(item)) for i, item in enumerate(SERIES[1:], 1)]
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
    most = MOST_QUERIES if dim <= SMALL_HEAD else 1
    text = "".join(_queries(dim, count) for count in sorted({1, most}))
    return compiled(
        common() + text + template("attention").substitute(dim=dim, most=most), {"attend": ATTEND}, inline=True
    )


def _queries(dim: int, members: int) -> str:
    """`members` queries that share a head's keys and values; each has the sums that it has alone."""
    parts = [HeadVector(i, dim) for i in range(-(-dim // LANES))]
    asked = [_Query(g, parts) for g in range(members)]
    return template("attention_query").substitute(
        members=members,
        dim=dim,
        lanes=LANES,
        load_queries=lines(line for item in asked for line in item.load(dim)),
        largest=lines(
            f"%max{g} = phi float [0xFFF0000000000000, %entry], [%higher{g}, %scored]" for g in range(members)
        ),
        scores=lines([*(line for part in parts for line in part.load("k", "kp")), *_each(asked, _Query.score)]),
        ends_of_scores=lines(_each(asked, _Query.end_of_scores)),
        spread_scale=lines(spread("scalev", "scale", "float")),
        sums=lines(
            f"%sums{g} = phi <16 x float> [zeroinitializer, %weigh], [%added{g}, %weight]" for g in range(members)
        ),
        weights=lines(_each(asked, _Query.weight)),
        denominators=lines(f"%denominator{g} = call float @total(<16 x float> %added{g})" for g in range(members)),
        value_sums=lines(_each(asked, _Query.value_sums)),
        value_terms=lines(
            [*(line for part in parts for line in part.load("v", "vp")), *_each(asked, _Query.value_terms)]
        ),
        store_answers=lines(_each(asked, _Query.answer)),
    )


@dataclass(frozen=True, slots=True)
class _Query:
    """Code of one of the queries that are answered together: `number` ends its names."""

    number: int
    parts: Sequence[HeadVector]

    def load(self, dim: int) -> list[str]:
        g = self.number
        code = [
            f"%qo{g} = getelementptr float, ptr %q, i64 {g * dim}",
            f"%yo{g} = getelementptr float, ptr %y, i64 {g * dim}",
            f"%so{g} = mul i64 %room, {g}",
            f"%scores{g} = getelementptr float, ptr %scratch, i64 %so{g}",
        ]
        return code + [line for part in self.parts for line in part.load(f"q{g}_", f"qo{g}")]

    def score(self) -> list[str]:
        g, before = self.number, "zeroinitializer"
        code = []
        for part in self.parts:
            code.append(fma(f"d{g}_{part.index}", f"%q{g}_{part.index}", f"%k{part.index}", before))
            before = f"%d{g}_{part.index}"
        return [
            *code,
            f"%s{g} = call float @total(<16 x float> {before})",
            f"%sp{g} = getelementptr float, ptr %scores{g}, i64 %j",
            f"store float %s{g}, ptr %sp{g}, align 4",
            f"%above{g} = fcmp ogt float %s{g}, %max{g}",
            f"%higher{g} = select i1 %above{g}, float %s{g}, float %max{g}",
        ]

    def end_of_scores(self) -> list[str]:
        g = self.number
        return [
            f"%endp{g} = getelementptr float, ptr %scores{g}, i64 %all",
            f"store <16 x float> splat (float 0xFFF0000000000000), ptr %endp{g}, align 4",
            *spread(f"maxv{g}", f"higher{g}", "float"),
        ]

    def weight(self) -> list[str]:
        g = self.number
        return [
            f"%wp{g} = getelementptr float, ptr %scores{g}, i64 %w",
            f"%raw{g} = load <16 x float>, ptr %wp{g}, align 4",
            f"%below{g} = fsub <16 x float> %raw{g}, %maxv{g}",
            f"%power{g} = fmul <16 x float> %below{g}, %scalev",
            f"%weights{g} = call <16 x float> @exponential(<16 x float> %power{g})",
            f"store <16 x float> %weights{g}, ptr %wp{g}, align 4",
            f"%added{g} = fadd <16 x float> %sums{g}, %weights{g}",
        ]

    def value_sums(self) -> list[str]:
        g = self.number
        return [
            f"%y{g}_{i} = phi <16 x float> [zeroinitializer, %sum], [%z{g}_{i}, %valued]"
            for i in range(len(self.parts))
        ]

    def value_terms(self) -> list[str]:
        g = self.number
        return [
            f"%np{g} = getelementptr float, ptr %scores{g}, i64 %n",
            f"%nw{g} = load float, ptr %np{g}, align 4",
            *spread(f"nwv{g}", f"nw{g}", "float"),
            *(fma(f"z{g}_{i}", f"%nwv{g}", f"%v{i}", f"%y{g}_{i}") for i in range(len(self.parts))),
        ]

    def answer(self) -> list[str]:
        g = self.number
        code = spread(f"denominatorv{g}", f"denominator{g}", "float")
        for part in self.parts:
            code.append(f"%o{g}_{part.index} = fdiv <16 x float> %z{g}_{part.index}, %denominatorv{g}")
            code += part.store(f"o{g}_", f"yo{g}")
        return code


def _each(asked: Sequence[_Query], code: Callable[[_Query], list[str]]) -> list[str]:
    return [line for item in asked for line in code(item)]


@cache
def rows_code() -> Code | None:
    """`norm`, `gate` and `rotate`; None on a processor without fused vector multiply-adds."""
    text = template("rows").substitute(
        mask_left=lines(first_lanes("m", "left")),
        mask_jleft=lines(first_lanes("jm", "jleft")),
        spread_factor=lines(spread("factorv", "factor", "float")),
    )
    return compiled(common() + text, {"norm": NORM, "gate": GATE, "rotate": ROTATE}, inline=True)


def common() -> str:
    """Code of both modules."""
    return template("common").substitute(
        smallest=vector(SMALLEST),
        log2e=vector(LOG2E),
        minus_high=vector(-LN2_HIGH),
        minus_low=vector(-LN2_LOW),
        series=_series(),
    )
