"""Machine code that makes the calls of a decoder's layer itself: attention and feed-forward, one function each.

A step of a small model is some hundred short computations, and Python needs longer to ask for most of them than they
take. The code asks the functions that the mode would have asked, in the same order, so the bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.models.numerics.ordered.machine_code import Code, compiled, first_lanes, lines, template
from engine.models.numerics.ordered.ordered_code import common
from engine.models.numerics.ordered.panels import ROWS

ATTENTION: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 2)
"""Words of the model, the layer and the forward, x and y [N, hidden]; the layer's index, and 1 to write keys only."""
FFN: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)

INTEGER, ADDRESS, NUMBER = "i64", "ptr", "double"

MODEL: Final = {
    **dict.fromkeys(("hidden", "heads", "kv_heads", "group", "dim", "inner", "short"), INTEGER),
    **dict.fromkeys(("hidden_share", "dim_share", "eps", "scale"), NUMBER),
    **dict.fromkeys(("norm", "rotate", "attend", "gate"), ADDRESS),
}
"""`short` is 1 for bfloat16."""
PRODUCTS: Final = ("qkv", "out", "gate_up", "down")
LAYER: Final = {
    **dict.fromkeys(("attention_gain", "qk_gain", "ffn_gain"), ADDRESS),
    **{f"{name}_{part}": ADDRESS for name in PRODUCTS for part in ("code", "weight", "scale", "bias")},
}
"""`qk_gain` is 0 without such a norm."""
FORWARD: Final = {
    **dict.fromkeys(("rows", "first_row", "layer_size", "row_size", "head_size"), INTEGER),
    **dict.fromkeys(("keys", "values", "write_rows", "write_slots", "cos", "sin", "plan", "scores"), ADDRESS),
    **dict.fromkeys(("normed", "qkv", "turned", "attended", "gate_up", "gated"), ADDRESS),
}
"""Sizes are numbers from one layer, row and head of the cache to the next; the last line is room."""


@dataclass(frozen=True, slots=True)
class Words:
    """Values of eight bytes each, and where they begin, which is asked of an array once."""

    values: NDArray[np.int64]
    at: int


def words(kinds: Mapping[str, str], values: Mapping[str, Any]) -> Words:
    """The values in the order of `kinds`.

    Raises:
        KeyError: a value is missing.
    """
    room = np.zeros(len(kinds), np.int64)
    floats = room.view(np.float64)
    for place, (name, kind) in enumerate(kinds.items()):
        (floats if kind == NUMBER else room)[place] = values[name]
    return Words(room, room.ctypes.data)


def address(function: Any) -> int:
    """Where a compiled function begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def joined_code() -> Code | None:
    """`attention` and `ffn`; None on a processor without fused vector multiply-adds."""
    read = [*_reads("m", MODEL), *_reads("l", LAYER), *_reads("s", FORWARD)]
    text = template("joined").substitute(words=lines(read), block_rows=ROWS, mask_left=lines(first_lanes("m", "left")))
    return compiled(common() + text, {"attention": ATTENTION, "ffn": FFN}, inline=True)


def _reads(pointer: str, kinds: Mapping[str, str]) -> list[str]:
    code = []
    for place, (name, kind) in enumerate(kinds.items()):
        target = f"%{name}_wide" if kind == NUMBER else f"%{name}"
        code += [
            f"%{name}_at = getelementptr i64, ptr %{pointer}, i64 {place}",
            f"{target} = load {kind}, ptr %{name}_at, align 8",
        ]
        if kind == NUMBER:
            code.append(f"%{name} = fptrunc double {target} to float")
    return code
