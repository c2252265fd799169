"""The norm of mode `ordered`, and the functions of rows that the mode shares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.numerics.ordered.ordered_code import rows_code


@dataclass(frozen=True, slots=True)
class OrderedNorm:
    """gain: [gains, width], which the rows of a call take by turns: one for all, or one per head."""

    gain: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[..., width], as many rows as gains or a multiple, in x's dtype."""
        gains, width = self.gain.shape
        wide = x.float().contiguous()
        answer = torch.empty_like(wide)
        function("norm")(
            wide.data_ptr(),
            self.gain.data_ptr(),
            answer.data_ptr(),
            wide.numel() // width,
            width,
            gains,
            1 / width,
            self.eps,
        )
        return answer if x.dtype is torch.float32 else answer.to(x.dtype)


def function(name: str) -> Callable[..., None]:
    """One of the functions of `rows_code`.

    Raises:
        ModelError: the processor has no fused vector multiply-adds.
    """
    code = rows_code()
    if code is None:
        raise ModelError("numerics ordered: this processor has no fused vector multiply-adds; use numerics: auto")
    return code[name]
