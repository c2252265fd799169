"""Products with a weight that was laid out in panels, by code that gives a row the same bits among any other rows.

At one to about forty rows, which is what decoding and verifying take, it is faster than the products that torch has for
CPUs; above that they are equal. Weights are read in their own type, sums are in float32, whatever the model's dtype.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.numerics.interface import Affine, Matrix
from engine.models.numerics.machine_code import Code
from engine.models.numerics.panel_code import WIDTH, product_code

ROWS: Final = 48
"""Rows per call: so many stay in the cache beside a panel."""
KINDS: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SHARED: Final = 2**20
"""Multiplications from which on threads share a product."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [out, in] as [panels, in, WIDTH], the last panel filled up with zeros, and its bias [out] in float32."""

    weight: Tensor
    bias: Tensor
    columns: int
    """Numbers of a row of the answer."""
    code: Code

    def multiply(self, x: Tensor) -> Tensor:
        """[N, in] of any float dtype -> [N, out] of the weight's."""
        wide = x.float().contiguous()
        rows, terms = wide.shape
        answer = torch.empty(rows, self.columns)
        threads = torch.get_num_threads()
        if threads > 1 and rows * terms * self.columns >= SHARED and len(self.weight) > 1:
            list(_pool(os.getpid(), threads).map(lambda part: self._fill(wide, answer, part), self._shares(threads)))
        else:
            self._fill(wide, answer, range(len(self.weight)))
        return answer.to(self.weight.dtype)

    def _fill(self, x: Tensor, answer: Tensor, part: range) -> None:
        """Write the columns of some panels, block of rows by block of rows."""
        terms, first = x.shape[1], part.start * WIDTH
        columns = min(part.stop * WIDTH, self.columns) - first
        weight = self.weight.data_ptr() + self.weight.element_size() * first * terms
        bias, source, target = self.bias.data_ptr() + 4 * first, x.data_ptr(), answer.data_ptr() + 4 * first
        for start in range(0, len(x), ROWS):
            rows = min(ROWS, len(x) - start)
            self.code["product"](
                source + 4 * start * terms,
                weight,
                bias,
                target + 4 * start * self.columns,
                terms,
                columns,
                self.columns,
                rows,
            )

    def _shares(self, threads: int) -> list[range]:
        """The panels in as many parts as threads, of about one size."""
        count = len(self.weight)
        ends = [count * number // threads for number in range(threads + 1)]
        return [range(start, end) for start, end in pairwise(ends) if start < end]


def panels(affine: Affine) -> Matrix | None:
    """The product through panels; None where there is no code for this dtype, device or processor."""
    kind = KINDS.get(affine.weight.dtype)
    if kind is None or affine.weight.device.type != "cpu":
        return None
    code = product_code(kind)
    if code is None:
        return None
    columns = len(affine.weight)
    bias = torch.zeros(columns) if affine.bias is None else affine.bias.float()
    return Panels(laid_out(affine.weight), bias, columns, code).multiply


def laid_out(weight: Tensor) -> Tensor:
    """[out, in] -> [panels, in, WIDTH]."""
    rows, terms = weight.shape
    whole = F.pad(weight, (0, 0, 0, -rows % WIDTH))
    return whole.view(-1, WIDTH, terms).transpose(1, 2).contiguous()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process, kept for all products: a forked process has none of its parent's."""
    return ThreadPoolExecutor(threads, f"products-of-{process}")
