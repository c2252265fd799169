"""Machine code for products with a weight that lies in panels, compiled by LLVM for this processor.

A number of the answer is a sum over the columns of the weight: TERMS at a time from zero, each term added by one fused
multiply-add in float32, in ascending order; then these sums are added in order. At last comes the bias; the sum of a
weight in integers is multiplied by its output's scale in the same fused step. LLVM may not reorder that, so the bits
depend neither on the other rows and their number nor on the processor. `panels.py` lays weights out and calls this
code.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Final

from engine.models.numerics.ordered.machine_code import Code, compiled, first_lanes, fma, lines, spread, template

WIDTH: Final = 16
"""Outputs of a panel: two vectors of AVX2, one of AVX-512."""
MOST_ROWS: Final = 6
"""Rows whose sums and the panel's vectors fit into 16 registers."""
SIDE_BY_SIDE: Final = {1: 4, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}
"""Panels at once by rows: few sums would wait for each other, and more than sixteen vectors have no registers."""
TERMS: Final = 1024
"""Terms of a sum that begins at zero: shorter sums round less. oneDNN's float32 product for AVX2 has the same."""
STREAMS: Final = 4
"""Places of the next panel that are fetched in turn, a power of two: memory gives several streams faster than one.

Blocks of rows fetch equal shares of it. Where several panels lie side by side, the processor fetches them itself.
"""

PRODUCT: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 4)
"""x [M, K], panels, scale [N], bias [N] and y [M, ldy], then K, N, ldy and M. Python's lock is open meanwhile."""


@dataclass(frozen=True, slots=True)
class Element:
    """How a weight is stored: its type, its bytes, and the code that makes float32 of a vector of them.

    finish: the code that makes an answer of a sum %g, the scale %t and the bias %c.
    """

    type: str
    size: int
    widened: str
    finish: str = "%i$at = fadd <16 x float> %g$at, %c$p"


ELEMENTS: Final = {
    "float32": Element("float", 4, "%w$p = bitcast <16 x float> %s$p to <16 x float>"),
    "bfloat16": Element(
        "i16",
        2,
        """%z$p = zext <16 x i16> %s$p to <16 x i32>
  %h$p = shl <16 x i32> %z$p, splat (i32 16)
  %w$p = bitcast <16 x i32> %h$p to <16 x float>""",
    ),
    "int8": Element("i8", 1, "%w$p = sitofp <16 x i8> %s$p to <16 x float>", fma("i$at", "%g$at", "%t$p", "%c$p")),
}


@cache
def product_code(element: str) -> Code | None:
    """`product` for a kind of weights; None on a processor without fused vector multiply-adds."""
    return compiled(source(ELEMENTS[element]), {"product": PRODUCT})


def source(element: Element) -> str:
    """The module in LLVM's language."""
    rows = range(1, MOST_ROWS + 1)
    parts = []
    for count in rows:
        together = SIDE_BY_SIDE[count]
        parts += [_block(count, panels, element) for panels in sorted({1, together})]
        parts.append(
            template("panel_few").substitute(
                rows=count,
                panels=together,
                together=together * WIDTH,
                type=element.type,
                width=WIDTH,
                row_bytes=WIDTH * element.size,
            )
        )
    whole = "(ptr %x, ptr %w, ptr %scale, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy)"
    few = [_call(f"few{count}", f"@few_{count}{whole}", "out") for count in rows]
    given = "(ptr %xb, ptr %wn, ptr %sn, ptr %bn, ptr %yb, i64 %K, i64 %ldy, i64 %left, ptr %ahead, i64 %step)"
    block = [_call(f"block{count}", f"@block_{count}_1{given}", "next_rows") for count in rows]
    parts.append(
        template("panel_product").substitute(
            type=element.type,
            width=WIDTH,
            row_bytes=WIDTH * element.size,
            streams=STREAMS,
            most=MOST_ROWS,
            almost=MOST_ROWS - 1,
            few="\n".join(few),
            few_choices=" ".join(f"i64 {count}, label %few{count}" for count in rows),
            block="\n".join(block),
            block_choices=" ".join(f"i64 {count}, label %block{count}" for count in rows),
        )
    )
    return "".join(parts)


def _call(label: str, function: str, then: str) -> str:
    return f"{label}:\n  call void {function}\n  br label %{then}"


def _block(rows: int, panels: int, element: Element) -> str:
    """The sums of `rows` rows with `panels` panels."""
    starts, sums = [], []
    if panels == 1:
        starts += [
            f"%stream_terms = udiv i64 %K, {STREAMS}",
            f"%stream_bytes = mul i64 %stream_terms, {WIDTH * element.size}",
        ]
    for r in range(rows):
        starts += [f"%xo{r} = mul i64 %K, {r}", f"%x{r} = getelementptr float, ptr %x, i64 %xo{r}"]
        sums += [f"%a{r}_{p} = phi <16 x float> [zeroinitializer, %part], [%b{r}_{p}, %term]" for p in range(panels)]
    for p in range(panels):
        starts += [f"%po{p} = mul i64 %K, {p * WIDTH}", f"%wp{p} = getelementptr {element.type}, ptr %w, i64 %po{p}"]
        sums += _weights(p, panels, element)
    for r in range(rows):
        sums += [f"%xq{r} = getelementptr float, ptr %x{r}, i64 %k", f"%xs{r} = load float, ptr %xq{r}, align 4"]
        sums += spread(f"xv{r}", f"xs{r}", "float")
        sums += [fma(f"b{r}_{p}", f"%xv{r}", f"%w{p}", f"%a{r}_{p}") for p in range(panels)]
    whole, ragged = (
        [line for p in range(panels) for line in _answers(p, rows, element, whole=item)] for item in (True, False)
    )
    return template("panel_block").substitute(
        rows=rows,
        panels=panels,
        columns=panels * WIDTH,
        terms=TERMS,
        starts=lines(starts),
        sums=lines(sums),
        whole=lines(whole),
        ragged=lines(ragged),
    )


def _weights(p: int, panels: int, element: Element) -> list[str]:
    """A vector of weights of one panel as float32."""
    vector = f"<16 x {element.type}>"
    code = [
        f"%q{p} = getelementptr {vector}, ptr %wp{p}, i64 %k",
        f"%s{p} = load {vector}, ptr %q{p}, align {element.size}",
        Template(element.widened).substitute(p=p),
    ]
    if panels == 1:
        code += _fetched()
    return code


def _fetched() -> list[str]:
    """Ask for one place of the panel after the only one; `step` is what a stream goes on by in STREAMS terms."""
    turns = STREAMS.bit_length() - 1
    return [
        f"%stream = and i64 %k, {STREAMS - 1}",
        "%stream_start = mul i64 %stream, %stream_bytes",
        f"%turn = lshr i64 %k, {turns}",
        "%gone = mul i64 %turn, %step",
        "%stream_at = add i64 %stream_start, %gone",
        "%fetch = getelementptr i8, ptr %ahead, i64 %stream_at",
        "call void @llvm.prefetch.p0(ptr %fetch, i32 0, i32 2, i32 1)",
    ]


def _answers(p: int, rows: int, element: Element, *, whole: bool) -> list[str]:
    """Sums so far and bias added: of all columns of a panel, or of those that the answer has."""
    vector, at = "<16 x float>", "w" if whole else "r"
    code = []
    if not whole:
        code += [f"%l{p} = sub i64 %left, {p * WIDTH}", *first_lanes(f"m{p}", f"l{p}")]

    def loaded(name: str, pointer: str) -> str:
        if whole:
            return f"%{name} = load {vector}, ptr %{pointer}, align 4"
        mask = f"<16 x i1> %m{p}, {vector} zeroinitializer"
        return f"%{name} = call {vector} @llvm.masked.load.v16f32.p0(ptr %{pointer}, i32 4, {mask})"

    def stored(name: str, pointer: str) -> str:
        if whole:
            return f"store {vector} %{name}, ptr %{pointer}, align 4"
        return f"call void @llvm.masked.store.v16f32.p0({vector} %{name}, ptr %{pointer}, i32 4, <16 x i1> %m{p})"

    for name, pointer in (("t", "scale"), ("c", "bias")):
        code += [
            f"%{name}p{at}{p} = getelementptr float, ptr %{pointer}, i64 {p * WIDTH}",
            loaded(f"{name}{at}{p}", f"{name}p{at}{p}"),
        ]
    for r in range(rows):
        here = f"{at}{r}_{p}"
        code += [
            f"%yo{here} = mul i64 %ldy, {r}",
            f"%yr{here} = getelementptr float, ptr %y, i64 %yo{here}",
            f"%yp{here} = getelementptr float, ptr %yr{here}, i64 {p * WIDTH}",
            loaded(f"d{here}", f"yp{here}"),
            f"%e{here} = fadd {vector} %d{here}, %b{r}_{p}",
            f"%g{here} = select i1 %first, {vector} %b{r}_{p}, {vector} %e{here}",
            *Template(element.finish).substitute(at=here, p=f"{at}{p}").splitlines(),
            f"%o{here} = select i1 %last, {vector} %i{here}, {vector} %g{here}",
            stored(f"o{here}", f"yp{here}"),
        ]
    return code
