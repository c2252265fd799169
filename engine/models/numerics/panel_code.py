"""Machine code for products with a weight that lies in panels, compiled by LLVM for this processor.

A number of the answer is a sum over the columns of the weight: TERMS at a time from zero, each term added by one fused
multiply-add in float32, in ascending order; then these sums are added in order, and the bias at last. LLVM may not
reorder that, so the bits depend neither on the other rows and their number nor on the processor. `panels.py` lays
weights out and calls this code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Any, Final

import llvmlite.binding as llvm

WIDTH: Final = 16
"""Outputs of a panel: two vectors of AVX2, one of AVX-512."""
MOST_ROWS: Final = 6
"""Rows whose sums and the panel's vectors fit into 16 registers."""
SIDE_BY_SIDE: Final = {1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1}
"""Panels at once by rows: fewer sums than eight would wait for each other."""
TERMS: Final = 1024
"""Terms of a sum that begins at zero: shorter sums round less. oneDNN's float32 product for AVX2 has the same."""
AHEAD: Final = 1024
"""Bytes that a single panel is fetched before they are needed; several panels are fetched by the processor itself."""

PRODUCT: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)
"""x [M, K], panels, bias and y [M, ldy], then K, N, ldy and M. Python's lock is open meanwhile."""


@dataclass(frozen=True, slots=True)
class Element:
    """How a weight is stored: its type, its bytes, and the code that makes float32 of a vector of them."""

    type: str
    size: int
    widened: str


ELEMENTS: Final = {
    "float32": Element("float", 4, "%w$p = bitcast <16 x float> %s$p to <16 x float>"),
    "bfloat16": Element(
        "i16",
        2,
        """%z$p = zext <16 x i16> %s$p to <16 x i32>
  %h$p = shl <16 x i32> %z$p, splat (i32 16)
  %w$p = bitcast <16 x i32> %h$p to <16 x float>""",
    ),
    "int8": Element("i8", 1, "%w$p = sitofp <16 x i8> %s$p to <16 x float>"),
}

DECLARATIONS: Final = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""

# the sums of some rows with some panels; `left` columns of the answer remain, which may be fewer than the panels have
BLOCK: Final = Template("""
define internal void @block_${rows}_$panels(ptr %x, ptr %w, ptr %bias, ptr %y, i64 %K, i64 %ldy, i64 %left)
noinline {
entry:
$starts
  br label %part
part:
  %from = phi i64 [0, %entry], [%to, %end]
  %rest = sub i64 %K, %from
  %short = icmp slt i64 %rest, $terms
  %size = select i1 %short, i64 %rest, i64 $terms
  %to = add i64 %from, %size
  br label %term
term:
  %k = phi i64 [%from, %part], [%next, %term]
$sums
  %next = add nuw nsw i64 %k, 1
  %done = icmp eq i64 %next, %to
  br i1 %done, label %end, label %term
end:
  %first = icmp eq i64 %from, 0
  %last = icmp eq i64 %to, %K
$ends
  br i1 %last, label %out, label %part
out:
  ret void
}
""")

# one to six rows: all panels of the answer, several at once while there are so many
FEW: Final = Template("""
define internal void @few_$rows(ptr %x, ptr %w, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy) {
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%after_several, %several], [%after_one, %one]
  %left = sub i64 %N, %n
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %place, label %out
place:
  %before = mul i64 %n, %K
  %wn = getelementptr $type, ptr %w, i64 %before
  %bn = getelementptr float, ptr %bias, i64 %n
  %yn = getelementptr float, ptr %y, i64 %n
  %enough = icmp sge i64 %left, $together
  br i1 %enough, label %several, label %one
several:
  call void @block_${rows}_$panels(ptr %x, ptr %wn, ptr %bn, ptr %yn, i64 %K, i64 %ldy, i64 %left)
  %after_several = add i64 %n, $together
  br label %head
one:
  call void @block_${rows}_1(ptr %x, ptr %wn, ptr %bn, ptr %yn, i64 %K, i64 %ldy, i64 %left)
  %after_one = add i64 %n, 16
  br label %head
out:
  ret void
}
""")

# any number of rows: panel by panel, which stays in the cache while blocks of at most six rows of about one size use it
PRODUCT_CODE: Final = Template("""
define void @product(ptr %x, ptr %w, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy, i64 %M) {
entry:
  switch i64 %M, label %many [ $few_choices ]
$few
many:
  %up = add i64 %M, $almost
  %blocks = udiv i64 %up, $most
  br label %panel
panel:
  %n = phi i64 [0, %many], [%after, %next_panel]
  %left = sub i64 %N, %n
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %place, label %out
place:
  %before = mul i64 %n, %K
  %wn = getelementptr $type, ptr %w, i64 %before
  %bn = getelementptr float, ptr %bias, i64 %n
  %yn = getelementptr float, ptr %y, i64 %n
  br label %rows
rows:
  %b = phi i64 [0, %place], [%b1, %next_rows]
  %b1 = add i64 %b, 1
  %low = mul i64 %b, %M
  %from = udiv i64 %low, %blocks
  %high = mul i64 %b1, %M
  %to = udiv i64 %high, %blocks
  %count = sub i64 %to, %from
  %xo = mul i64 %from, %K
  %xb = getelementptr float, ptr %x, i64 %xo
  %yo = mul i64 %from, %ldy
  %yb = getelementptr float, ptr %yn, i64 %yo
  switch i64 %count, label %next_rows [ $block_choices ]
$block
next_rows:
  %last = icmp eq i64 %b1, %blocks
  br i1 %last, label %next_panel, label %rows
next_panel:
  %after = add i64 %n, 16
  br label %panel
out:
  ret void
}
""")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A function of machine code; it lives as long as the engine that holds its memory."""

    product: Callable[..., None]
    engine: Any


@cache
def compiled(element: str) -> Compiled | None:
    """The product for a kind of weights; None on a processor without fused vector multiply-adds."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if llvm.get_default_triple().startswith("x86_64") and not (features.get("fma") and features.get("avx2")):
        return None
    return compiled_for(element, llvm.get_host_cpu_name(), features.flatten())


def compiled_for(element: str, processor: str, features: str) -> Compiled:
    """The product for a kind of weights and a processor as LLVM names it."""
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=3)
    module = llvm.parse_assembly(source(ELEMENTS[element]))
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Compiled(PRODUCT(engine.get_function_address("product")), engine)


def source(element: Element) -> str:
    """The module in LLVM's language."""
    rows = range(1, MOST_ROWS + 1)
    parts = [DECLARATIONS]
    for count in rows:
        together = SIDE_BY_SIDE[count]
        parts += [_block(count, panels, element) for panels in sorted({1, together})]
        parts.append(FEW.substitute(rows=count, panels=together, together=together * WIDTH, type=element.type))
    whole = "(ptr %x, ptr %w, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy)"
    few = [_call(f"few{count}", f"@few_{count}{whole}", "out") for count in rows]
    given = "(ptr %xb, ptr %wn, ptr %bn, ptr %yb, i64 %K, i64 %ldy, i64 %left)"
    block = [_call(f"block{count}", f"@block_{count}_1{given}", "next_rows") for count in rows]
    parts.append(
        PRODUCT_CODE.substitute(
            type=element.type,
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
    starts, sums, ends = [], [], []
    for r in range(rows):
        starts += [f"%xo{r} = mul i64 %K, {r}", f"%x{r} = getelementptr float, ptr %x, i64 %xo{r}"]
        sums += [f"%a{r}_{p} = phi <16 x float> [zeroinitializer, %part], [%b{r}_{p}, %term]" for p in range(panels)]
    for p in range(panels):
        starts += [
            f"%po{p} = mul i64 %K, {p * WIDTH}",
            f"%wp{p} = getelementptr {element.type}, ptr %w, i64 %po{p}",
        ]
        sums += _weights(p, panels, element)
    for r in range(rows):
        sums += [f"%xq{r} = getelementptr float, ptr %x{r}, i64 %k", f"%xs{r} = load float, ptr %xq{r}, align 4"]
        sums += _spread(f"xv{r}", f"xs{r}", "float")
        sums += [
            f"%b{r}_{p} = call <16 x float> @llvm.fma.v16f32"
            f"(<16 x float> %xv{r}, <16 x float> %w{p}, <16 x float> %a{r}_{p})"
            for p in range(panels)
        ]
    for p in range(panels):
        ends += _answers(p, rows)
    return BLOCK.substitute(
        rows=rows, panels=panels, terms=TERMS, starts=_lines(starts), sums=_lines(sums), ends=_lines(ends)
    )


def _weights(p: int, panels: int, element: Element) -> list[str]:
    """A vector of weights of one panel as float32."""
    vector = f"<16 x {element.type}>"
    lines = [
        f"%q{p} = getelementptr {vector}, ptr %wp{p}, i64 %k",
        f"%s{p} = load {vector}, ptr %q{p}, align {element.size}",
        Template(element.widened).substitute(p=p),
    ]
    if panels == 1:
        lines += [
            f"%f{p} = getelementptr i8, ptr %q{p}, i64 {AHEAD}",
            f"call void @llvm.prefetch.p0(ptr %f{p}, i32 0, i32 3, i32 1)",
        ]
    return lines


def _answers(p: int, rows: int) -> list[str]:
    """Sums so far and bias added, and the columns that the answer has written."""
    lanes = ", ".join(f"i64 {lane}" for lane in range(WIDTH))
    lines = [
        f"%l{p} = sub i64 %left, {p * WIDTH}",
        *_spread(f"lv{p}", f"l{p}", "i64"),
        f"%m{p} = icmp sgt <16 x i64> %lv{p}, <{lanes}>",
        f"%bp{p} = getelementptr float, ptr %bias, i64 {p * WIDTH}",
        f"%c{p} = call <16 x float> @llvm.masked.load.v16f32.p0"
        f"(ptr %bp{p}, i32 4, <16 x i1> %m{p}, <16 x float> zeroinitializer)",
    ]
    for r in range(rows):
        lines += [
            f"%yo{r}_{p} = mul i64 %ldy, {r}",
            f"%yr{r}_{p} = getelementptr float, ptr %y, i64 %yo{r}_{p}",
            f"%yp{r}_{p} = getelementptr float, ptr %yr{r}_{p}, i64 {p * WIDTH}",
            f"%d{r}_{p} = call <16 x float> @llvm.masked.load.v16f32.p0"
            f"(ptr %yp{r}_{p}, i32 4, <16 x i1> %m{p}, <16 x float> zeroinitializer)",
            f"%e{r}_{p} = fadd <16 x float> %d{r}_{p}, %b{r}_{p}",
            f"%g{r}_{p} = select i1 %first, <16 x float> %b{r}_{p}, <16 x float> %e{r}_{p}",
            f"%i{r}_{p} = fadd <16 x float> %g{r}_{p}, %c{p}",
            f"%o{r}_{p} = select i1 %last, <16 x float> %i{r}_{p}, <16 x float> %g{r}_{p}",
            f"call void @llvm.masked.store.v16f32.p0(<16 x float> %o{r}_{p}, ptr %yp{r}_{p}, i32 4, <16 x i1> %m{p})",
        ]
    return lines


def _spread(name: str, scalar: str, type_: str) -> list[str]:
    """A number in every lane of a vector."""
    return [
        f"%{name}i = insertelement <16 x {type_}> poison, {type_} %{scalar}, i64 0",
        f"%{name} = shufflevector <16 x {type_}> %{name}i, <16 x {type_}> poison, <16 x i32> zeroinitializer",
    ]


def _lines(code: list[str]) -> str:
    return "\n".join(f"  {line}" for line in code)
