"""The fastest arithmetic that torch offers; promises nothing about bits.

Attention's sums depend on how many columns there are, and where products do not go through panels one row is rounded
otherwise than several. Plain and speculative decoding then agree in the first six digits or so, not in the last.

Of the kernels that torch has for CPUs, the product with a weight that was laid out once for oneDNN is the fastest at 2
to 16 rows and, if the probe passes, gives a row the same bits next to any other rows. The operator belongs to torch's
compiler and is undocumented, so its absence is reported, not raised.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.cache import CacheShape, TensorSlotCache
from engine.models.interface import Placement
from engine.models.numerics import interface
from engine.models.numerics.layouts import MaskedLayout, additive_mask, batch_rows, is_alone, padding, working_dtype
from engine.models.numerics.ordered.panels import panels

ROWS_HINT = 8
"""The layout is chosen for about this many rows; any number may be given."""


class FastNumerics:
    """The fastest products, fused attention."""

    name = "fast"
    promises = interface.Invariance.NONE
    most_tree_nodes: int | None = None

    def matrix(self, affine: interface.Affine) -> interface.Matrix:
        """Packed where the processor multiplies bfloat16 itself, else through panels.

        Without panels a single row in float32 takes the plain product, which is then faster than the packed one.
        """
        own = affine.weight.dtype is torch.bfloat16 and can_pack(affine.weight)
        if not own and (fastest := panels(affine)) is not None:
            return fastest
        single, several = plain(affine), packed(affine)
        if several is None or affine.weight.dtype is not torch.float32:
            return several or single
        many = several
        return lambda x: single(x) if x.shape[0] == 1 else many(x)

    def norm(self, weight: Tensor | None, eps: float, width: int) -> interface.Norm:
        """In float32 for 16-bit models."""
        return short_rms_norm(weight, eps, width)

    def joined(self, layers: Sequence[interface.DecoderLayer], heads: interface.HeadSizes) -> interface.Layers | None:  # noqa: ARG002 - the protocol's
        """Call by call."""
        return None

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up."""
        return gated(gate_up)

    def rotate(self, x: Tensor, rope: interface.RopeTables) -> Tensor:
        """Rotary embedding in the half-split layout."""
        return rotated(x, rope)

    def rope(self, frequencies: Tensor, positions: int, dtype: torch.dtype) -> interface.RopeTables:
        """Computed in float64 and rounded once."""
        return rope_tables(frequencies, positions, dtype)

    def new_cache(self, shape: CacheShape, dtype: torch.dtype) -> TensorSlotCache:
        """Keys and values in the attention's dtype."""
        return TensorSlotCache(shape, working_dtype(dtype))

    def layout(self, placement: Placement, heads: interface.HeadSizes, dtype: torch.dtype) -> interface.AttentionLayout:
        """A mask only where something is hidden."""
        pads = padding(placement)
        single = is_alone(placement, pads)
        mask = None if single else additive_mask(placement, pads, placement.span, working_dtype(dtype)).unsqueeze(1)
        return MaskedLayout(placement, heads, pads, mask)

    def windows(self, cache: TensorSlotCache, layout: interface.AttentionLayout) -> Sequence[interface.AttentionWindow]:
        """The columns that any query sees."""
        rows, span = batch_rows(layout.placement), layout.placement.span
        keys, values = cache.all_keys[:, rows, :, :span].unbind(), cache.all_values[:, rows, :, :span].unbind()
        return [interface.AttentionWindow(key, (value,)) for key, value in zip(keys, values, strict=True)]

    def attend(self, queries: Tensor, window: interface.AttentionWindow, layout: interface.AttentionLayout) -> Tensor:
        """Fused attention."""
        assert isinstance(layout, MaskedLayout)
        pads, wide = layout.pads, queries.to(window.keys.dtype)
        alone = pads.width == 1 and pads.gather is None
        seen = F.scaled_dot_product_attention(
            wide.unsqueeze(2) if alone else pads.pad(wide).transpose(1, 2),
            window.keys,
            window.values[0],
            layout.mask,
            enable_gqa=layout.heads.group > 1,
        )
        rows = seen if alone else pads.unpad(seen.transpose(1, 2))
        return rows.flatten(1).to(queries.dtype)


def rms_norm(weight: Tensor | None, eps: float, width: int) -> interface.Norm:
    """The norm x / sqrt(mean of x^2 + eps) * weight in few and simple torch calls: its own takes twice as long.

    Each call works on single numbers or whole rows, so that a row's bits depend only on the row.
    """
    gain = math.sqrt(width) if weight is None else weight.to(working_dtype(weight.dtype)) * math.sqrt(width)
    floor = eps * width

    def norm(x: Tensor) -> Tensor:
        # widened first, for a product of two dtypes would be slower than both together
        wide = x.to(working_dtype(x.dtype))
        length = torch.linalg.vector_norm(wide, 2.0, -1, True)
        normed: Tensor = (wide * length.mul_(length).add_(floor).rsqrt_()).mul_(gain).to(x.dtype)
        return normed

    return norm


def short_rms_norm(weight: Tensor | None, eps: float, width: int) -> interface.Norm:
    """The same in one call less; the root of the sum of two squares may round otherwise for many rows than for few."""
    gain = math.sqrt(width) if weight is None else weight.to(working_dtype(weight.dtype)) * math.sqrt(width)
    device = None if weight is None else weight.device
    floor = torch.tensor(math.sqrt(eps * width), dtype=torch.float64, device=device)

    def norm(x: Tensor) -> Tensor:
        wide = x.to(working_dtype(x.dtype))
        length = torch.hypot(torch.linalg.vector_norm(wide, 2.0, -1, True), floor)
        return (wide / length).mul_(gain).to(x.dtype)

    return norm


def gated(gate_up: Tensor) -> Tensor:
    """The silu of the first half times the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotated(x: Tensor, rope: interface.RopeTables) -> Tensor:
    """Rotary position embedding of [..., head_dim] (Su et al., 2104.09864, in the half-split layout)."""
    return torch.addcmul(x * rope.cos, x.roll(x.shape[-1] // 2, -1), rope.sin)


def rope_tables(frequencies: Tensor, positions: int, dtype: torch.dtype) -> interface.RopeTables:
    """The rotations of every position, computed in float64 and rounded once.

    transformers computes them in float32, so at far positions ours are the more
    accurate: the angle's error there is about position * 1e-7.
    """
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return interface.RopeTables(torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype))


def packed(affine: interface.Affine) -> interface.Matrix | None:
    """The product through a packed weight; None where torch cannot pack this dtype on this machine."""
    if not can_pack(affine.weight):
        return None
    weight, bias = torch.ops.mkldnn._reorder_linear_weight(affine.weight, ROWS_HINT), affine.bias
    product = torch.ops.mkldnn._linear_pointwise.default

    def multiply(x: Tensor) -> Tensor:
        answer: Tensor = product(x, weight, bias, "none", [], "")
        return answer

    return multiply


def can_pack(weight: Tensor) -> bool:
    """Whether the packed product exists for this weight's dtype and device."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    if weight.device.type != "cpu" or not available:
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def plain(affine: interface.Affine) -> interface.Matrix:
    """The product as torch does it by default."""
    weight, bias = affine.weight, affine.bias
    return lambda x: F.linear(x, weight, bias)


def padded(affine: interface.Affine, multiple: int) -> interface.Matrix:
    """The default product on a number of rows that is a multiple of `multiple`."""
    weight, bias = affine.weight, affine.bias

    def multiply(x: Tensor) -> Tensor:
        missing = -len(x) % multiple
        return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)] if missing else F.linear(x, weight, bias)

    return multiply
