"""Products and norms over a constant number of rows, for devices whose libraries choose a kernel by the shape.

A GPU's library adds up the terms of a product in an order that depends on the number of rows. Cut into blocks of
exactly ROWS rows, the last one filled up, every call has one shape and so one kernel; whether its rows depend on each
other is for the probe to find out.
"""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS: Final = 32
"""More than the tokens of most steps. On an H200, 32 rows cost 1.0 to 2.8 times one row in float32."""


def needed(device: torch.device) -> bool:
    """Whether a device's kernels depend on the number of rows; torch's packed products on a CPU do not."""
    return device.type == "cuda"


def by_blocks(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of [N, ...] rows that works on ROWS rows at a time."""

    def cut(x: Tensor) -> Tensor:
        parts = [function(part) for part in torch.split(filled(x, 0, ROWS), ROWS)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[: len(x)]

    return cut


def filled(x: Tensor, dim: int, multiple: int) -> Tensor:
    """The tensor with zeros after it, so that its size in a dimension is a multiple of `multiple`."""
    missing = -x.shape[dim] % multiple
    return F.pad(x, [0, 0] * (x.dim() - dim - 1) + [0, missing]) if missing else x
