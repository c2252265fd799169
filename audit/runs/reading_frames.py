"""What the process that judges and its helpers tell each other: pickles, each behind its length.

Both ends are this program, with the same packages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from audit.checks.base.shared_reading import Parts
from audit.evidence.records import ArmRecord

LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Task:
    """An arm without its requests, and the names of the checks that read it."""

    arm: ArmRecord
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadParts:
    """The parts of an order's requests, or the error instead of them."""

    parts: Sequence[Parts]
    error: Exception | None = None


def write_frame(target: IO[bytes], content: bytes) -> None:
    """Write some bytes behind their length."""
    target.write(LENGTH.pack(len(content)))
    target.write(content)
    target.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """The next bytes that `write_frame` wrote; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    content = source.read(length)
    return content if len(content) == length else None
