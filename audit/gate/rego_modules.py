"""Rego modules as they were given. The engine, regopy, comes with the extra `specaudit[rego]`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from audit.errors import needs
from audit.text.documents import decode_text, read_bytes

MOST_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class RegoModule:
    """The text of a module, its file's name, and its digest."""

    name: str
    text: str
    sha256: str


def read_modules(paths: Sequence[Path]) -> tuple[RegoModule, ...]:
    """The modules of files; nothing is compiled here.

    Raises:
        UserError: a file that cannot be read, or no engine.
    """
    if paths:
        with needs("rego"):
            if find_spec("regopy") is None:
                raise ImportError(name="regopy")
    return tuple(map(_read, paths))


def _read(path: Path) -> RegoModule:
    raw = read_bytes(path, MOST_BYTES)
    return RegoModule(path.name, decode_text(str(path), raw), hashlib.sha256(raw).hexdigest())
