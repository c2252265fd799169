"""What a bundle shows without a store: every hash is recomputed from the rows, by the code that checks stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from audit.store.bundle.archive import refusal
from audit.store.bundle.unpack import unpacked
from audit.store.contents import IntegrityViolation
from audit.store.store import Store


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle whose parts are whole, in a store of its own.

    broken: places whose hash differs from the recomputed one; empty if the record is the one of the record root.
    """

    store: Store
    run: str
    record_root: str
    broken: tuple[IntegrityViolation, ...]


@contextmanager
def opened(path: Path) -> Iterator[OpenBundle]:
    """A bundle for reading and judging; nothing outside a temporary folder is written.

    Raises:
        UserError: the bundle is refused.
    """
    with unpacked(path) as (url, manifest), Store.open(url, create=False) as store:
        broken = store.broken_places(manifest.run)
        run = store.load_run(manifest.run)
        if run.record_root != manifest.record_root:
            raise refusal(path, "manifest.json", "its record root is not the run's")
        yield OpenBundle(store, manifest.run, manifest.record_root, broken)


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
