"""Products with a weight that was laid out once for oneDNN.

Of the kernels that torch has for CPUs this one is both the fastest at 2 to 16
rows and, if the probe passes, gives a row the same bits next to any other rows. The operator belongs to torch's
compiler and is undocumented, so its absence is reported, not raised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.numerics.interface import Affine, Matrix

ROWS_HINT = 8
"""The layout is chosen for about this many rows; any number may be given."""


def packed(affine: Affine) -> Matrix | None:
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


def plain(affine: Affine) -> Matrix:
    """The product as torch does it by default."""
    weight, bias = affine.weight, affine.bias
    return lambda x: F.linear(x, weight, bias)


def padded(affine: Affine, multiple: int) -> Matrix:
    """The default product on a number of rows that is a multiple of `multiple`."""
    weight, bias = affine.weight, affine.bias

    def multiply(x: Tensor) -> Tensor:
        missing = -len(x) % multiple
        return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)] if missing else F.linear(x, weight, bias)

    return multiply
