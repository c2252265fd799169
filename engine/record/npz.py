"""Arrays out of a numpy `.npz` whose members are stored, in a tenth of `numpy.load`'s time.

A run of a million tokens is thousands of traces of some fifty arrays each, read
by every check: opening members one by one as files, and parsing each array's
header as Python, would be most of the work.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LOCAL: Final = struct.Struct("<26xHH")
"""Fixed part of a member's header: it ends with the lengths of its name and of its extra field."""
_PREFIX: Final = b"\x93NUMPY\x01\x00"


@dataclass(frozen=True, slots=True)
class _ArrayHeader:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool


def arrays_of(raw: bytes) -> dict[str, NDArray[Any]]:
    """The arrays by name; copies, so that the archive can be freed.

    Raises:
        ValueError: a member is compressed, is no array of numbers, or has another checksum.
        struct.error: a member begins behind the end.
        zipfile.BadZipFile: no archive.
    """
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = archive.infolist()
    return {each.filename.removesuffix(".npy"): _array(_content(raw, each)) for each in members}


def _content(raw: bytes, member: zipfile.ZipInfo) -> memoryview:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise ValueError(f"{member.filename} is not stored as it is")
    name, extra = _LOCAL.unpack_from(raw, member.header_offset)
    start = member.header_offset + _LOCAL.size + name + extra
    content = memoryview(raw)[start : start + member.file_size]
    if zlib.crc32(content) != member.CRC:
        raise ValueError(f"{member.filename} has another checksum")
    return content


def _array(content: memoryview) -> NDArray[Any]:
    if bytes(content[: len(_PREFIX)]) != _PREFIX:
        raise ValueError("a member is no array")
    (length,) = struct.unpack_from("<H", content, len(_PREFIX))
    start = len(_PREFIX) + 2 + length
    layout = _layout(bytes(content[len(_PREFIX) : start]))
    flat = np.frombuffer(content[start:], dtype=layout.dtype)
    return np.array(flat.reshape(layout.shape, order="F" if layout.fortran else "C"))


@lru_cache(maxsize=4096)
def _layout(header: bytes) -> _ArrayHeader:
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(header))
    if dtype.hasobject:
        raise ValueError("an array holds objects")
    return _ArrayHeader(dtype, shape, fortran)
