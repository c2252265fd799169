"""Arrays by name in few bytes: a JSON directory, then the values in the narrowest form that keeps every bit.

A column is stored as one value if all of its values are equal, as differences if these are narrower, as float32 if its
float64 values are float32 ones, and with the bytes of its values sorted by significance, which a compressor needs to
find what repeats. Whole rows are stored as they are, because they are nearly incompressible.
"""

import json
import math
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

LENGTH: Final = struct.Struct("<I")
FIRST: Final = struct.Struct("<q")
MOST_BYTES: Final = 2**32
"""No trace is larger: a directory that promises more is damaged."""
ROUNDED_SHARE: Final = 4
"""Float64 columns of which more than a quarter are no float32 values stay float64."""
MANY_VALUES: Final = 2048
"""From so many values on, a copy by planes is faster than one by values, by a factor of two to five."""
PLAIN, ONE, BYTES, DELTA, SPLIT = "p", "1", "b", "d", "s"
Array = NDArray[Any]
CODES: Final[Mapping[str, np.dtype[Any]]] = {
    code: np.dtype(f"<{code}") for code in ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}


@dataclass(frozen=True, slots=True)
class Packed:
    """One column: its form and its bytes. `stored` is the type of the values in `content`."""

    form: str
    stored: str
    content: bytes


def pack(document: Mapping[str, Any], columns: Mapping[str, Array], whole: Collection[str]) -> bytes:
    """The document and the columns as bytes; those in `whole` are stored as they are.

    Equal arguments give equal bytes.
    """
    directory, contents, shapes = [], [], list[list[int]]()
    for name, column in columns.items():
        made = _as_it_is(column) if name in whole else _packed(column)
        shape = list(column.shape)
        if shape not in shapes:
            shapes.append(shape)
        entry = [name, _code(column), shapes.index(shape), made.form, made.stored]
        directory.append([*entry, len(made.content)] if made.form == SPLIT else entry)
        contents.append(made.content)
    document = {**document, "columns": directory, "shapes": shapes}
    head = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return sealed(b"".join([LENGTH.pack(len(head)), head, *contents]))


def sealed(body: bytes) -> bytes:
    """The body behind its checksum."""
    return LENGTH.pack(zlib.crc32(body)) + body


class ColumnLayout(NamedTuple):
    """The form of a column. Not a frozen dataclass, which takes five times as long to make."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    values: int


@dataclass(frozen=True, slots=True)
class ContainerContent:
    """The arguments of `pack`, with the layouts of all columns, read or not."""

    document: dict[str, Any]
    columns: dict[str, Array]
    layouts: dict[str, ColumnLayout]


def unpack(content: bytes, only: Collection[str] | None = None) -> ContainerContent:
    """The inverse of `pack`; columns are copies.

    Args:
        content: the bytes.
        only: the columns to read, by default all.

    Raises:
        ValueError, TypeError, LookupError, struct.error: the bytes are damaged.
    """
    (checksum,) = LENGTH.unpack_from(content)
    (length,) = LENGTH.unpack_from(content, LENGTH.size)
    if zlib.crc32(memoryview(content)[LENGTH.size :]) != checksum:
        raise ValueError("the content has another checksum")
    begin = 2 * LENGTH.size
    at, end = begin + length, len(content)
    document = _document(content[begin:at])
    columns: dict[str, Array] = {}
    layouts: dict[str, ColumnLayout] = {}
    shapes, view = [_shape(shape) for shape in document.pop("shapes")], memoryview(content)
    for name, code, place, form, stored, *split in document.pop("columns"):
        dtype, kind, shape = _dtype(code), _dtype(stored), shapes[place]
        count = math.prod(shape)
        if count * dtype.itemsize > MOST_BYTES:
            raise ValueError(f"a column of shape {shape} is larger than any trace")
        size = int(split[0]) if form == SPLIT else _size(form, kind, count)
        if not 0 <= size <= end - at:
            raise ValueError(f"column {name} ends behind the end")
        layouts[name] = ColumnLayout(dtype, shape, kind, count)
        if only is None or name in only:
            columns[name] = FORMS[form](view[at : at + size], layouts[name])
        at += size
    if at != end:
        raise ValueError("bytes follow the last column")
    return ContainerContent(document, columns, layouts)


def _document(head: bytes) -> Any:
    """The directory; the standard library's reader takes twice as long, but knows NaN, which a fact may be."""
    try:
        return orjson.loads(head)
    except orjson.JSONDecodeError:
        return json.loads(head)


def _shape(extents: Sequence[int]) -> tuple[int, ...]:
    if any(type(extent) is not int or extent < 0 for extent in extents):
        raise ValueError(f"a column has no shape {extents}")
    return tuple(extents)


def _size(form: str, stored: np.dtype[Any], count: int) -> int:
    """Bytes of a column; a split one says its own."""
    values = 1 if form == ONE else count
    return FIRST.size + (values - 1) * stored.itemsize if form == DELTA else values * stored.itemsize


def _code(column: Array) -> str:
    return column.dtype.newbyteorder("<").str[1:]


def _dtype(code: str) -> np.dtype[Any]:
    if code not in CODES:
        raise ValueError(f"a column holds {code}")
    return CODES[code]


def _as_it_is(column: Array) -> Packed:
    return Packed(PLAIN, _code(column), _little(column).tobytes())


def _little(column: Array) -> Array:
    return column.astype(column.dtype.newbyteorder("<"), copy=False)


def _packed(column: Array) -> Packed:
    flat = _little(np.ascontiguousarray(column).reshape(-1))
    if not flat.size:
        return Packed(PLAIN, _code(column), b"")
    bits = flat.view(f"<u{flat.dtype.itemsize}") if flat.dtype.kind == "f" else flat  # NaN equals itself, 0 not -0
    if bool((bits == bits[0]).all()):
        return Packed(ONE, _code(column), flat[:1].tobytes())
    if flat.dtype.kind == "f":
        return _packed_floats(flat)
    return _packed_integers(flat) if flat.dtype.kind in "iu" else _as_it_is(column)


def _packed_integers(flat: Array) -> Packed:
    stored = _narrowest(int(flat.min()), int(flat.max()))
    if stored.itemsize > 4 or stored.itemsize == 1:
        # differences of 64-bit numbers may overflow
        return _split_in_bytes(flat.astype(stored))
    steps = np.diff(flat.astype(np.int64))
    narrow = _narrowest(int(steps.min()), int(steps.max()))
    if narrow.itemsize >= stored.itemsize:
        return _split_in_bytes(flat.astype(stored))
    return Packed(DELTA, narrow.str[1:], FIRST.pack(int(flat[0])) + _planes(steps.astype(narrow)))


def _packed_floats(flat: Array) -> Packed:
    if flat.dtype.itemsize != 8:
        return _split_in_bytes(flat)
    with np.errstate(over="ignore", invalid="ignore"):
        single = flat.astype("<f4")
    wide = single.astype("<f8").view("<u8") != flat.view("<u8")
    if not wide.any():
        return _split_in_bytes(single)
    if int(wide.sum()) * ROUNDED_SHARE > flat.size:
        return _split_in_bytes(flat)
    content = np.packbits(wide, bitorder="little").tobytes() + _planes(single[~wide]) + _planes(flat[wide])
    return Packed(SPLIT, "f4", content)


def _narrowest(least: int, most: int) -> np.dtype[Any]:
    for code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
        dtype = np.dtype(f"<{code}")
        limits = np.iinfo(dtype)
        if limits.min <= least and most <= limits.max:
            return dtype
    raise ValueError(f"no integer type holds {least} to {most}")


def _split_in_bytes(values: Array) -> Packed:
    return Packed(BYTES, values.dtype.str[1:], _planes(values))


def _planes(values: Array) -> bytes:
    """The first bytes of all values, then the second ones, and so on."""
    return values.view(np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes()


def _values(content: memoryview, stored: np.dtype[Any], count: int) -> Array:
    """The inverse of `_planes`."""
    size = stored.itemsize
    if len(content) != count * size:
        raise ValueError("a column has another length")
    if size == 1:
        return np.frombuffer(content, stored)
    planes = np.frombuffer(content, np.uint8).reshape(size, count)
    if count < MANY_VALUES:
        return np.frombuffer(planes.T.tobytes(), stored)
    values = np.empty((count, size), np.uint8)
    for place, plane in enumerate(planes):
        values[:, place] = plane
    return values.reshape(-1).view(stored)


def _read_planes(content: memoryview, layout: ColumnLayout) -> Array:
    values = _values(content, layout.stored, layout.values).astype(layout.dtype)
    return values if len(layout.shape) == 1 else values.reshape(layout.shape)


def _read_one(content: memoryview, layout: ColumnLayout) -> Array:
    (value,) = np.frombuffer(content, layout.dtype)
    return np.full(layout.values, value, layout.dtype).reshape(layout.shape)


def _read_delta(content: memoryview, layout: ColumnLayout) -> Array:
    (first,) = FIRST.unpack_from(content)
    steps = _values(content[FIRST.size :], layout.stored, layout.values - 1).astype(np.int64)
    return np.cumsum(np.concatenate([[first], steps]), dtype=np.int64).astype(layout.dtype).reshape(layout.shape)


def _read_split(content: memoryview, layout: ColumnLayout) -> Array:
    count, ends = layout.values, -(-layout.values // 8)
    wide = np.unpackbits(np.frombuffer(content[:ends], np.uint8), count=count, bitorder="little").astype(np.bool_)
    lines = ends + 4 * int((~wide).sum())
    values = np.empty(count, np.dtype("<f8"))
    values[~wide] = _values(content[ends:lines], np.dtype("<f4"), int((~wide).sum()))
    values[wide] = _values(content[lines:], np.dtype("<f8"), int(wide.sum()))
    return values.astype(layout.dtype).reshape(layout.shape)


FORMS: Final[Mapping[str, Callable[[memoryview, ColumnLayout], Array]]] = {
    PLAIN: lambda content, layout: np.array(np.frombuffer(content, layout.dtype).reshape(layout.shape)),
    BYTES: _read_planes,
    ONE: _read_one,
    DELTA: _read_delta,
    SPLIT: _read_split,
}
