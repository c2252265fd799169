"""Products with a weight that was laid out in panels, by code that gives a row the same bits among any other rows.

At one to about forty rows, which is what decoding and verifying take, it is faster than the products that torch has for
CPUs; above that they are equal. Weights are read in their own type, sums are in float32, whatever the model's dtype.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.numerics.interface import Affine, Matrix
from engine.models.numerics.ordered.large_pages import large_pages
from engine.models.numerics.ordered.machine_code import Code
from engine.models.numerics.ordered.panel_code import WIDTH, product_code

ROWS: Final = 48
"""Rows per call: so many stay in the cache beside a panel."""
KINDS: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SHARED: Final = 2**20
"""Multiplications from which on threads share a product."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a weight, its scale and its bias begin, and how many panels, terms and outputs it has.

    Asked of tensors once, because a step asks hundreds of times.
    """

    weight: int
    scale: int
    bias: int
    panels: int
    terms: int
    columns: int
    panel_bytes: int


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [out, in] as [panels, in, WIDTH], the last panel filled up with zeros, and its bias [out] in float32.

    scale: [out] what integers are multiplied by; nothing reads it for other weights. dtype: of the answer.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor
    dtype: torch.dtype
    code: Code
    at: Addresses = field(init=False)

    def __post_init__(self) -> None:
        count, terms, _ = self.weight.shape
        addresses = Addresses(
            self.weight.data_ptr(),
            self.scale.data_ptr(),
            self.bias.data_ptr(),
            count,
            terms,
            self.bias.shape[0],
            self.weight.element_size() * WIDTH * terms,
        )
        object.__setattr__(self, "at", addresses)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in] of any float dtype -> [N, out]."""
        wide = x.float().contiguous()
        rows, at = wide.shape[0], self.at
        answer = torch.empty(rows, at.columns)
        threads = torch.get_num_threads()
        if self.shared(rows, threads):
            list(_pool(os.getpid(), threads).map(lambda part: self._fill(wide, answer, part), self._shares(threads)))
        else:
            self._fill(wide, answer, range(at.panels))
        return answer if self.dtype is torch.float32 else answer.to(self.dtype)

    def shared(self, rows: int, threads: int) -> bool:
        """Whether threads share a product of so many rows."""
        at = self.at
        return threads > 1 and rows * at.terms * at.columns >= SHARED and at.panels > 1

    def _fill(self, x: Tensor, answer: Tensor, part: range) -> None:
        """Write the columns of some panels, block of rows by block of rows."""
        at, product, count = self.at, self.code["product"], x.shape[0]
        first = part.start * WIDTH
        columns = min(part.stop * WIDTH, at.columns) - first
        weight, scale, bias = at.weight + at.panel_bytes * part.start, at.scale + 4 * first, at.bias + 4 * first
        source, target = x.data_ptr(), answer.data_ptr() + 4 * first
        for start in range(0, count, ROWS):
            product(
                source + 4 * start * at.terms,
                weight,
                scale,
                bias,
                target + 4 * start * at.columns,
                at.terms,
                columns,
                at.columns,
                min(ROWS, count - start),
            )

    def _shares(self, threads: int) -> list[range]:
        """The panels in as many parts as threads, of about one size."""
        ends = [self.at.panels * number // threads for number in range(threads + 1)]
        return [range(start, end) for start, end in pairwise(ends) if start < end]


def panels(affine: Affine) -> Matrix | None:
    """The product through panels; None where there is no code for this dtype, device or processor."""
    kind = KINDS.get(affine.weight.dtype)
    if kind is None or affine.weight.device.type != "cpu":
        return None
    code = product_code(kind)
    if code is None:
        return None
    bias = bias_of(affine)
    return Panels(laid_out(affine.weight), bias, bias, affine.weight.dtype, code)


def rounded_panels(affine: Affine) -> Matrix | None:
    """The same with weights rounded to 8 bits: to a multiple of its row's largest number over 127."""
    code = product_code("int8") if affine.weight.device.type == "cpu" else None
    if code is None or affine.weight.dtype not in KINDS:
        return None
    wide = affine.weight.float()
    scale = wide.abs().amax(1) / 127
    integers = (wide / torch.where(scale > 0, scale, 1.0)[:, None]).round().to(torch.int8)
    return Panels(laid_out(integers), scale, bias_of(affine), affine.weight.dtype, code)


def bias_of(affine: Affine) -> Tensor:
    """The bias in float32, zeros without one."""
    return torch.zeros(len(affine.weight)) if affine.bias is None else affine.bias.float()


def laid_out(weight: Tensor) -> Tensor:
    """[out, in] -> [panels, in, WIDTH]."""
    rows, terms = weight.shape
    whole = F.pad(weight, (0, 0, 0, -rows % WIDTH))
    parts = whole.view(-1, WIDTH, terms).transpose(1, 2)
    return large_pages().empty(tuple(parts.shape), parts.dtype).copy_(parts)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process, kept for all products: a forked process has none of its parent's."""
    return ThreadPoolExecutor(threads, f"products-of-{process}")
