"""Messages between processes: a JSON header with arrays behind it, each with its length in front.

Reading a message never runs code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

LENGTH: Final = struct.Struct("<Q")
LAST: Final = "last_"
"""Begins the names of arrays that have an entry per request, not per drafted token."""
MOST: Final = 2**40
"""A greater length indicates a damaged stream."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class TruncatedStream(Exception):
    """The stream ended inside a message: its writer died."""


def write(stream: IO[bytes], frame: Frame) -> None:
    """Write one message and flush it."""
    arrays = {name: np.ascontiguousarray(each) for name, each in frame.arrays.items()}
    shapes = {name: [each.dtype.str, list(each.shape)] for name, each in arrays.items()}
    head = json.dumps({"header": dict(frame.header), "arrays": shapes}).encode()
    stream.write(LENGTH.pack(len(head)) + head)
    for each in arrays.values():
        stream.write(each.data.cast("B") if each.size else b"")
    stream.flush()


def read(stream: IO[bytes]) -> Frame | None:
    """The next message; None at the end of the stream.

    Raises:
        Truncated: the stream ends inside a message.
    """
    start = stream.read(LENGTH.size)
    if not start:
        return None
    if len(start) < LENGTH.size:
        raise TruncatedStream
    document = json.loads(_exactly(stream, LENGTH.unpack(start)[0]))
    arrays = {name: _array(stream, np.dtype(kind), shape) for name, (kind, shape) in document["arrays"].items()}
    return Frame(document["header"], arrays)


def _array(stream: IO[bytes], kind: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    # a copy: arrays over bytes are read-only, and a record's reduction writes into rows
    return np.frombuffer(_exactly(stream, size), dtype=kind).reshape(shape).copy()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    if size > MOST:
        raise TruncatedStream
    data = stream.read(size)
    if len(data) < size:
        raise TruncatedStream
    return data
