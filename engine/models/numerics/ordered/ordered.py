"""Bitwise equal rows for chains and trees on every machine: each sum has one order, by code of our own.

A query adds up its own columns in the order of their positions, wherever they stand in the cache and whatever the
other queries see, so a token has in a batch, a tree or a prompt the bits that it has alone. Hidden columns and padding
cost nothing. All operations are correctly rounded ones of float32 (`panel_code.py`, `ordered_code.py`), whatever the
model's dtype, so the bits do not depend on the processor either.

`ordered` with weights rounded to 8 bits, for drafts: a quarter of the memory to read per drafted token.

Rounding changes what a model says, so it is no arithmetic of a target. A draft's numbers decide only how many drafts
are accepted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.cache import CacheShape, TensorSlotCache
from engine.models.interface import Placement
from engine.models.numerics import interface
from engine.models.numerics.layouts import batch_rows
from engine.models.numerics.ordered.joint_calls import joined_layers
from engine.models.numerics.ordered.ordered_code import LANES, MOST_QUERIES, attention_code
from engine.models.numerics.ordered.ordered_plan import OrderedLayout, OrderedNorm, chain_plan, function, tree_plan
from engine.models.numerics.ordered.panels import panels, rounded_panels
from engine.models.numerics.rotations import rope_tables


class OrderedNumerics:
    """Products through panels, attention query by query."""

    name = "ordered"
    promises = interface.Invariance.EVERYWHERE
    most_tree_nodes: int | None = None

    def matrix(self, affine: interface.Affine) -> interface.Matrix:
        """The product through panels. Raises ModelError: there is none for this dtype, device or processor."""
        return required(panels(affine), affine, "numerics ordered", "use numerics: auto")

    def norm(self, weight: Tensor | None, eps: float, width: int) -> interface.Norm:
        """In float32, rounded once to x's dtype."""
        gain = torch.ones(1, width) if weight is None else weight.float().contiguous().view(-1, width)
        return OrderedNorm(gain, eps)

    def joined(self, layers: Sequence[interface.DecoderLayer], heads: interface.HeadSizes) -> interface.Layers | None:
        """One call per sublayer, into machine code."""
        return joined_layers(layers, heads)

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, rounded once."""
        wide = gate_up.float().contiguous()
        rows, width = wide.shape[0], wide.shape[1] // 2
        answer = torch.empty(rows, width)
        function("gate")(wide.data_ptr(), answer.data_ptr(), rows, width)
        return answer.to(gate_up.dtype)

    def rotate(self, x: Tensor, rope: interface.RopeTables) -> Tensor:
        """Rotary embedding in float32, not rounded to the model's dtype: queries and keys stay wide."""
        wide = x.float()
        if wide.stride(1) != wide.shape[2] or wide.stride(2) != 1:
            wide = wide.contiguous()
        answer = torch.empty(wide.shape)
        rows, heads, width = wide.shape
        function("rotate")(
            wide.data_ptr(),
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
            answer.data_ptr(),
            rows,
            heads,
            width,
            wide.stride(0),
        )
        return answer

    def rope(self, frequencies: Tensor, positions: int, dtype: torch.dtype) -> interface.RopeTables:  # noqa: ARG002 - the protocol's
        """From integer arithmetic, rounded once to float32."""
        return rope_tables(frequencies, positions, torch.float32)

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:  # noqa: ARG002 - the protocol's
        """Keys and values in float32."""
        return TensorSlotCache(shape, torch.float32)

    def layout(self, placement: Placement, heads: interface.HeadSizes, dtype: torch.dtype) -> interface.AttentionLayout:  # noqa: ARG002 - the protocol's
        """The columns of each query."""
        plan = chain_plan(placement) if placement.branches is None else tree_plan(placement)
        return OrderedLayout(
            placement, heads, torch.from_numpy(plan), torch.empty(MOST_QUERIES, placement.span + LANES)
        )

    def windows(self, cache: TensorSlotCache, layout: interface.AttentionLayout) -> Sequence[interface.AttentionWindow]:
        """The batch's rows [B, kv_heads, columns, head_dim], all columns."""
        rows = batch_rows(layout.placement)
        return [interface.AttentionWindow(k[rows], (v[rows],)) for k, v in zip(cache.keys, cache.values, strict=True)]

    def attend(self, queries: Tensor, window: interface.AttentionWindow, layout: interface.AttentionLayout) -> Tensor:
        """Query by query, head by head."""
        assert isinstance(layout, OrderedLayout)
        heads, keys = layout.heads, window.keys
        code = attention_code(heads.head_dim)
        assert code is not None
        wide = queries.float().contiguous()
        answer = torch.empty(wide.shape[0], heads.heads * heads.head_dim)
        code["attend"](
            wide.data_ptr(),
            keys.data_ptr(),
            window.values[0].data_ptr(),
            answer.data_ptr(),
            layout.scratch.data_ptr(),
            layout.plan.data_ptr(),
            wide.shape[0],
            heads.kv_heads,
            heads.group,
            keys.stride(0),
            keys.stride(1),
            heads.head_dim**-0.5,
        )
        return answer


def required(made: interface.Matrix | None, affine: interface.Affine, mode: str, advice: str) -> interface.Matrix:
    """The product, which must exist. Raises ModelError: it does not."""
    if made is None:
        dtype = str(affine.weight.dtype).removeprefix("torch.")
        raise ModelError(f"{mode}: no product for {dtype} on this {affine.weight.device.type}; {advice}")
    return made


class Int8Numerics(OrderedNumerics):
    """Every matrix in 8 bits with a scale per output; embeddings, norms and attention as in `ordered`."""

    name = "int8"

    def matrix(self, affine: interface.Affine) -> interface.Matrix:
        """The product through rounded panels. Raises ModelError: there is none for this dtype, device or processor."""
        return required(rounded_panels(affine), affine, "numerics int8", "remove it")
