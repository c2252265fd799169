"""Memory on large pages: tensors that share nothing, on aligned places, and that outlive each other."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

from engine.models.numerics.ordered.large_pages import CHUNK, LINE, PAGE, LargePages

SIZES = (1, 3, 1000, PAGE // 4, CHUNK // 16, CHUNK // 16, 7, CHUNK // 16, CHUNK // 2, 5)
"""Numbers of float32: some share a chunk, one has memory of its own."""


def filled(pages):
    made = [pages.empty((size,), torch.float32) for size in SIZES]
    for number, each in enumerate(made):
        each.fill_(number)
    return made


def test_tensors_share_no_byte():
    made = filled(LargePages())
    for number, each in enumerate(made):
        assert each.data_ptr() % LINE == 0
        assert each.min() == each.max() == number


def test_a_tensor_outlives_its_fellows_and_the_pages():
    kept = filled(LargePages())[3]
    gc.collect()
    assert kept.min() == kept.max() == 3


def test_shapes_and_dtypes():
    pages = LargePages()
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        made = pages.empty((3, 5, 16), dtype)
        assert made.dtype == dtype
        assert made.shape == (3, 5, 16)
        assert made.is_contiguous()
    assert pages.empty((0, 16), torch.float32).shape == (0, 16)


def test_a_large_weight_begins_on_a_page():
    assert LargePages().empty((CHUNK,), torch.int8).data_ptr() % PAGE == 0


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages here")
def test_the_system_is_asked_for_large_pages():
    pages = LargePages()
    for size in (7, 4 * CHUNK):
        assert "hg" in flags_at(pages.empty((size,), torch.int8).fill_(1).data_ptr())


def flags_at(address):
    """The kernel's flags of the mapping around an address; hg: huge pages advised."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *words = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return words
    return []


def test_a_kernel_without_them_gives_ordinary_memory(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("engine.models.numerics.ordered.large_pages.mmap.mmap", Refusing)
    assert filled(LargePages())[3].max() == 3
    monkeypatch.delattr("engine.models.numerics.ordered.large_pages.mmap.MADV_HUGEPAGE")
    assert filled(LargePages())[3].max() == 3
