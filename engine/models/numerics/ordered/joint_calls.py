"""The layers of a model in mode `ordered` or `int8` with one call per sublayer, into machine code.

A step of a small model is some hundred short computations, and Python needs longer to ask for most of them than they
take. The code, one function for attention and one for feed-forward, asks the functions that the mode would have asked,
in the same order, so the bits are the same. It is for one thread: where threads share a product, the layers run call by
call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.cache import TensorSlotCache
from engine.models.numerics.interface import DecoderLayer, ForwardContext, HeadSizes, LayerPass
from engine.models.numerics.ordered.machine_code import Code, compiled, first_lanes, lines, template
from engine.models.numerics.ordered.ordered_code import attention_code, common, rows_code
from engine.models.numerics.ordered.ordered_plan import OrderedLayout, OrderedNorm
from engine.models.numerics.ordered.panels import ROWS, Panels

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
class LayerParts:
    """A layer whose pieces are all machine code, so that their addresses are known."""

    attention_norm: OrderedNorm
    qk_norm: OrderedNorm | None
    ffn_norm: OrderedNorm
    products: Mapping[str, Panels]
    """By the names of `PRODUCTS`."""

    def words(self) -> Words:
        """As `LAYER` orders them."""
        values = {
            "attention_gain": self.attention_norm.gain.data_ptr(),
            "qk_gain": 0 if self.qk_norm is None else self.qk_norm.gain.data_ptr(),
            "ffn_gain": self.ffn_norm.gain.data_ptr(),
        }
        for name, product in self.products.items():
            values |= {
                f"{name}_code": address(product.code["product"]),
                f"{name}_weight": product.at.weight,
                f"{name}_scale": product.at.scale,
                f"{name}_bias": product.at.bias,
            }
        return words(LAYER, values)


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """Layers, and the words of the model and of each layer that machine code reads."""

    layers: Sequence[LayerParts]
    heads: HeadSizes
    code: Code
    model_words: Words
    layer_words: Sequence[Words]

    def begin(self, cache: TensorSlotCache, step: ForwardContext) -> LayerPass | None:
        """Write down where everything is; None if threads share a product."""
        rows, threads = len(step.tokens), torch.get_num_threads()
        if any(product.shared(rows, threads) for product in self.layers[0].products.values()):
            return None
        layout = step.layout
        assert isinstance(layout, OrderedLayout)
        tensors = {
            **self._room(rows),
            "keys": cache.all_keys,
            "values": cache.all_values,
            "write_rows": step.aim.rows if step.aim.run is None else torch.full((rows,), step.aim.row),
            "write_slots": step.aim.slots.contiguous(),
            "cos": step.rope.cos,
            "sin": step.rope.sin,
            "plan": layout.plan,
            "scores": layout.scratch,
        }
        result = {
            "rows": rows,
            "first_row": layout.placement.first_row,
            "layer_size": cache.all_keys.stride(0),
            "row_size": cache.all_keys.stride(1),
            "head_size": cache.all_keys.stride(2),
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        }
        return JoinedPass(self, words(FORWARD, result), tensors)

    def _room(self, rows: int) -> dict[str, Tensor]:
        """Tensors for the in-between results of a layer."""
        products, heads = self.layers[0].products, self.heads
        queries = heads.heads * heads.head_dim
        widths = {
            "normed": products["qkv"].at.terms,
            "qkv": products["qkv"].at.columns,
            "turned": queries,
            "attended": queries,
            "gate_up": products["gate_up"].at.columns,
            "gated": products["down"].at.terms,
        }
        return {name: torch.empty(rows, width) for name, width in widths.items()}


@dataclass(frozen=True, slots=True)
class JoinedPass:
    """One forward; `kept` are the tensors whose addresses `forward_words` has."""

    of: JoinedLayers
    forward_words: Words
    kept: Mapping[str, Tensor]

    def attention(self, index: int, x: Tensor, *, keys_only: bool = False) -> Tensor:
        """In float32, whatever the model's dtype."""
        wide = x.float().contiguous()
        answer = wide if keys_only else torch.empty_like(wide)
        self._call("attention", index, wide, answer, index, keys_only)
        return answer

    def ffn(self, index: int, x: Tensor) -> Tensor:
        """In float32, whatever the model's dtype."""
        wide = x.float().contiguous()
        answer = torch.empty_like(wide)
        self._call("ffn", index, wide, answer)
        return answer

    def _call(self, name: str, index: int, x: Tensor, answer: Tensor, *more: int) -> None:
        of = self.of
        words = (of.model_words.at, of.layer_words[index].at, self.forward_words.at)
        of.code[name](*words, x.data_ptr(), answer.data_ptr(), *more)


def joined_layers(layers: Sequence[DecoderLayer], heads: HeadSizes) -> JoinedLayers | None:
    """The layers joined; None if a piece is no machine code, as where a caller replaced one."""
    code, rows, attention = joined_code(), rows_code(), attention_code(heads.head_dim)
    parts = [result for layer in layers if (result := _parts(layer)) is not None]
    if code is None or rows is None or attention is None or not parts or len(parts) < len(layers):
        return None
    first = parts[0].products
    hidden = first["qkv"].at.terms
    values: dict[str, Any] = {
        "hidden": hidden,
        "heads": heads.heads,
        "kv_heads": heads.kv_heads,
        "group": heads.group,
        "dim": heads.head_dim,
        "inner": first["down"].at.terms,
        "short": first["qkv"].dtype is torch.bfloat16,
        "hidden_share": 1 / hidden,
        "dim_share": 1 / heads.head_dim,
        "eps": parts[0].attention_norm.eps,
        "scale": heads.head_dim**-0.5,
        "norm": address(rows["norm"]),
        "rotate": address(rows["rotate"]),
        "attend": address(attention["attend"]),
        "gate": address(rows["gate"]),
    }
    return JoinedLayers(parts, heads, code, words(MODEL, values), [part.words() for part in parts])


def _parts(layer: DecoderLayer) -> LayerParts | None:
    products = {name: getattr(layer, name) for name in PRODUCTS}
    norms = (layer.attention_norm, layer.ffn_norm)
    if not all(isinstance(product, Panels) for product in products.values()):
        return None
    if not isinstance(norms[0], OrderedNorm) or not isinstance(norms[1], OrderedNorm):
        return None
    if not (layer.qk_norm is None or isinstance(layer.qk_norm, OrderedNorm)):
        return None
    return LayerParts(norms[0], layer.qk_norm, norms[1], products)


@dataclass(frozen=True, slots=True)
class Words:
    """Values of eight bytes each, and where they begin, which is asked of an array once."""

    values: NDArray[np.int64]
    at: int


def words(kinds: Mapping[str, str], values: Mapping[str, Any]) -> Words:
    """The values in the order of `kinds`. Raises KeyError: a value is missing."""
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
