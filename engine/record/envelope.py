"""The bytes around a trace: the magic number of its version, the compressor, and the digest of the content.

It knows no columns and needs no numpy, so hashes are verified without it. Whether the content is a trace shows in
`decode`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import zstandard

from engine.core.errors import TraceError
from engine.record.common_text import COMMON

MAGIC: Final = b"SATRAC10"
WITHOUT_ONCE: Final = b"SATRACE7"
"""The version that holds the values of accepted tokens twice."""
WITHOUT_DIGEST_KIND: Final = (
    *(b"SATRACE9", b"SATRACE8", WITHOUT_ONCE, b"SATRACE6", b"SATRACE5", b"SATRACE4", b"SATRACE3", b"SATRACE2"),
    b"SATRACE1",
)
"""Versions whose digests are BLAKE2b; later ones name the hash function."""
PACKED: Final = (MAGIC, *WITHOUT_DIGEST_KIND[:3])
"""Versions whose content is that of `engine.record.container`, compressed with the dictionary."""
READABLE: Final = (MAGIC, *WITHOUT_DIGEST_KIND)
"""Versions that are read."""
COMPRESSION: Final = 1
"""Rows are nearly incompressible: level 3 takes half again as long to save 0.4 % of a full trace."""

_DICTIONARY: Final = zstandard.ZstdCompressionDict(COMMON, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def wrap(content: bytes) -> bytes:
    """The content compressed, behind the magic number of this version."""
    compressor = zstandard.ZstdCompressor(level=COMPRESSION, dict_data=_DICTIONARY)
    return MAGIC + compressor.compress(content)


def unwrap(data: bytes) -> bytes:
    """The content of what `wrap` wrote, in this version or in an older one.

    Raises:
        zstandard.ZstdError: the bytes are damaged.
        MemoryError: the stated size is larger than any trace.
    """
    # a view: at level full a copy of the bytes costs a third of their decompression
    known = _DICTIONARY if data.startswith(PACKED) else None
    return zstandard.ZstdDecompressor(dict_data=known).decompress(memoryview(data)[len(MAGIC) :], max_output_size=2**32)


def version_of(data: bytes) -> bytes:
    """The magic number that a trace begins with.

    Raises:
        TraceError: this version does not read it.
    """
    if not data.startswith(READABLE):
        known = " or ".join(repr(each) for each in READABLE)
        raise TraceError(f"not a trace: it begins with {data[:8]!r} instead of {known}")
    return data[: len(MAGIC)]


@dataclass(frozen=True, slots=True)
class Opened:
    """A trace's bytes, decompressed: the magic number of its version and its content."""

    version: bytes
    content: bytes

    @property
    def number(self) -> int:
        """The version as a number."""
        return int(self.version[-2:].lstrip(b"E"))

    @property
    def digest(self) -> str:
        """Hex SHA-256 of version and content, so that it outlives a change of compressor."""
        return hashlib.sha256(self.version + self.content).hexdigest()


def opened(data: bytes) -> Opened:
    """The content of a trace with its version.

    Raises:
        TraceError: the bytes are not a trace, or cannot be decompressed.
    """
    version = version_of(data)
    try:
        return Opened(version, unwrap(data))
    except (zstandard.ZstdError, MemoryError) as error:
        raise TraceError(f"damaged trace: {error}") from error


def digest(data: bytes) -> str:
    """SHA-256 of a trace's uncompressed content; raises as `opened`."""
    return opened(data).digest
