"""Memory on large pages for weights: a processor that looks up fewer addresses reads them up to a fifth faster.

Linux gives such pages on request, where it is set to `madvise` or `always`; elsewhere the memory is the ordinary one.
Small weights share a chunk, which is freed with the last of them.
"""

import mmap
from contextlib import suppress
from functools import cache
from math import prod
from typing import Final

import torch
from torch import Tensor

PAGE: Final = 2**21
"""Bytes of a large page on x86, and on ARM with small pages of 4 KiB."""
CHUNK: Final = 16 * PAGE
"""Bytes that small weights share; untouched pages of it take no memory."""
LINE: Final = 64
"""Bytes to which tensors are aligned: a cache line, and a vector of AVX-512."""


class LargePages:
    """Hands out tensors from chunks of memory on large pages."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._taken = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor."""
        size = prod(shape) * dtype.itemsize
        if size > CHUNK // 4:
            return own_pages(shape, dtype)
        start = -(-self._taken // LINE) * LINE
        if start + size > len(self._chunk):
            self._chunk, start = _mapped(CHUNK), 0
        self._taken = start + size
        return self._chunk[start : self._taken].view(dtype).view(shape)


@cache
def large_pages() -> LargePages:
    """The process's."""
    return LargePages()


def own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor whose pages go back to the system with it, while the heap keeps most of what it frees.

    Tensors below a page are on the heap.
    """
    size = prod(shape) * dtype.itemsize
    return torch.empty(shape, dtype=dtype) if size < PAGE else _mapped(size)[:size].view(dtype).view(shape)


def _mapped(size: int) -> Tensor:
    """[at least size] bytes that begin on a large page."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    whole = -(-size // PAGE) * PAGE
    # the start of a mapping lies anywhere, so one page more has an aligned start
    memory = mmap.mmap(-1, whole + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # a kernel without large pages refuses, and its small ones will do
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    offset = -tensor.data_ptr() % PAGE
    return tensor[offset : offset + whole]
