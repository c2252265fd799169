"""The bytes around a trace: the magic number of its format, the compressor, and the digest of the content.

It knows no columns and needs no numpy, so hashes are verified without it. Whether the content is a trace shows in
`decode`.
"""

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import zstandard

from engine.core.errors import InvalidRequest, TraceError

FORMAT: Final = 1
MAGIC: Final = b"SPECAUD1"
"""The first bytes of a trace of this format."""
COMPRESSION: Final = 1
"""Rows are nearly incompressible: level 3 takes half again as long to save 0.4 % of a full trace."""

DAMAGE: Final = (
    zstandard.ZstdError,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    InvalidRequest,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions from damaged bytes: flipped bits in the archive look like encryption, other versions or huge sizes."""

COMMON: Final = files("engine.record").joinpath("common_text.txt").read_bytes()
"""Text that directories of traces share. It is part of the format: with another text no trace could be read."""
_DICTIONARY: Final = zstandard.ZstdCompressionDict(COMMON, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


@contextmanager
def damage_named() -> Iterator[None]:
    """Turn exceptions from damaged bytes into a TraceError."""
    try:
        yield
    except DAMAGE as error:
        raise TraceError(f"damaged trace: {error}") from error


def wrap(content: bytes) -> bytes:
    """The content compressed, behind the magic number."""
    compressor = zstandard.ZstdCompressor(level=COMPRESSION, dict_data=_DICTIONARY)
    return MAGIC + compressor.compress(content)


def unwrap(data: bytes) -> bytes:
    """The content of the bytes that `wrap` wrote.

    Raises:
        zstandard.ZstdError: the bytes are damaged.
        MemoryError: the stated size is larger than any trace.
    """
    # a view: at level full a copy of the bytes costs a third of their decompression
    decompressor = zstandard.ZstdDecompressor(dict_data=_DICTIONARY)
    return decompressor.decompress(memoryview(data)[len(MAGIC) :], max_output_size=2**32)


@dataclass(frozen=True, slots=True)
class Opened:
    """A trace's content, decompressed."""

    content: bytes

    @property
    def digest(self) -> str:
        """Hex SHA-256 of magic number and content, so that it outlives a change of compressor."""
        return hashlib.sha256(MAGIC + self.content).hexdigest()


def opened(data: bytes) -> Opened:
    """The content of a trace.

    Raises:
        TraceError: the bytes are not a trace of this format, or cannot be decompressed.
    """
    if not data.startswith(MAGIC):
        raise TraceError(f"not a trace of format {FORMAT}: it begins with {data[:8]!r} instead of {MAGIC!r}")
    try:
        return Opened(unwrap(data))
    except (zstandard.ZstdError, MemoryError) as error:
        raise TraceError(f"damaged trace: {error}") from error
