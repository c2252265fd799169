"""Which columns of the cache each query of a forward adds up in mode `ordered`, and in which order.

The norm of mode `ordered`, and the functions of rows that the mode shares with it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.interface import Placement
from engine.models.numerics.interface import HeadSizes
from engine.models.numerics.ordered.ordered_code import rows_code


@dataclass(frozen=True, slots=True)
class OrderedLayout:
    """`plan`: int64, four numbers per query, then lists of columns: its batch row, how many first columns it sees,
    where the list of the others begins, and how long that is. `scratch` has room for the scores of queries that are
    answered together.
    """

    placement: Placement
    heads: HeadSizes
    plan: Tensor
    scratch: Tensor


def chain_plan(placement: Placement) -> NDArray[np.int64]:
    """Each query sees the columns up to its position."""
    lengths, positions = placement.lengths, placement.positions.numpy()
    ends = np.concatenate([row[:count] for row, count in zip(positions, lengths, strict=True)]) + 1
    rows = np.repeat(np.arange(len(lengths)), lengths)
    nothing = np.zeros_like(ends)
    return np.stack([rows, ends, nothing, nothing], 1)


def tree_plan(placement: Placement) -> NDArray[np.int64]:
    """Each query sees the columns that the placement says; a path's columns ascend with its positions."""
    assert placement.branches is not None
    heads, lists = [], []
    used = 4 * sum(placement.lengths)
    for row, count in enumerate(placement.lengths):
        for seen in placement.branches[row, :count].numpy():
            columns = np.flatnonzero(seen)
            prefix = int((columns == np.arange(len(columns))).sum())
            lists.append(columns[prefix:])
            heads.append((row, prefix, used, len(columns) - prefix))
            used += len(columns) - prefix
    return np.concatenate([np.array(heads, np.int64).ravel(), *lists]).astype(np.int64)


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
    """One of the functions of `rows_code`. Raises ModelError: the processor has no fused vector multiply-adds."""
    code = rows_code()
    if code is None:
        raise ModelError("numerics ordered: this processor has no fused vector multiply-adds; use numerics: auto")
    return code[name]
