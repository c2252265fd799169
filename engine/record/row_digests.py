"""Digests of rows: 8 bytes of a cryptographic hash over a row's bytes.

A trace names the algorithm of its digests, because digests of two algorithms cannot be compared. Traces before
version 10 used BLAKE2b, which takes five times as long as BLAKE3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

SIZE: Final = 8


class DigestKind(StrEnum):
    """A hash function that a trace's digests of rows and masks may use."""

    BLAKE2B = "blake2b"
    BLAKE3 = "blake3"


def _blake2b(row: memoryview) -> bytes:
    return hashlib.blake2b(row, digest_size=SIZE).digest()


def _blake3(row: memoryview) -> bytes:
    return blake3(row).digest(SIZE)


FUNCTIONS: Final[Mapping[DigestKind, Callable[[memoryview], bytes]]] = {
    DigestKind.BLAKE2B: _blake2b,
    DigestKind.BLAKE3: _blake3,
}


def digests(rows: NDArray[Any], kind: DigestKind = DigestKind.BLAKE3) -> NDArray[np.uint64]:
    """[E] the first 8 bytes of the hash of each row's bytes, read as a little-endian number.

    Rows that differ in one bit have different digests but for a chance of 2^-64.
    """
    of = FUNCTIONS[kind]
    values = (of(memoryview(row.view(np.uint8))) for row in np.ascontiguousarray(rows))
    return np.frombuffer(b"".join(values), dtype="<u8").astype(np.uint64)
