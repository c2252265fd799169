"""Digests of rows: the first 8 bytes of BLAKE3 over a row's bytes, which takes a fifth of BLAKE2b's time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

SIZE: Final = 8


def digests(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """[E] the first 8 bytes of the hash of each row's bytes, read as a little-endian number.

    Rows that differ in one bit have different digests but for a chance of 2^-64.
    """
    values = (blake3(memoryview(row.view(np.uint8))).digest(SIZE) for row in np.ascontiguousarray(rows))
    return np.frombuffer(b"".join(values), dtype="<u8").astype(np.uint64)
