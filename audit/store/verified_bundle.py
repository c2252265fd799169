"""Verifies a bundle without a store: every hash is recomputed from the rows, by the code that checks stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from audit.store.base.connection import open_readonly, parse_url
from audit.store.base.keys import PublicKey
from audit.store.base.violations import IntegrityViolation
from audit.store.bundle.archive import LOG, refusal
from audit.store.bundle.inclusion import BundleInclusion, compared
from audit.store.bundle.unpack import Unpacked, unpacked
from audit.store.store import Store
from audit.store.tables.lookup import find_run


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle whose parts are whole, in a store of its own.

    broken: places whose hash differs from the recomputed one, and rows that are not those of the log; empty if the
        record is the one of the record root.
    inclusion: what the bundle's proof of a log shows; None without one.
    """

    store: Store
    run: str
    record_root: str
    broken: tuple[IntegrityViolation, ...]
    inclusion: BundleInclusion | None


@contextmanager
def opened(path: Path, key: PublicKey | None = None) -> Iterator[OpenBundle]:
    """A bundle for reading and judging; nothing outside a temporary folder is written.

    Args:
        path: the file.
        key: verifies the signature of the bundle's checkpoint.

    Raises:
        UserError: the bundle is refused.
    """
    with unpacked(path) as result, Store.open(result.url, create=False) as store:
        manifest = result.manifest
        broken = store.broken_places(manifest.run)
        run = store.load_run(manifest.run)
        if run.record_root != manifest.record_root:
            raise refusal(path, "manifest.json", "its record root is not the run's")
        shown = None if result.proof is None else _inclusion(result, key, f"{path}: {LOG}")
        if shown is not None:
            broken += tuple(IntegrityViolation("log", item) for item in shown.broken)
        yield OpenBundle(store, manifest.run, manifest.record_root, broken, shown)


def _inclusion(result: Unpacked, key: PublicKey | None, place: str) -> BundleInclusion:
    engine = open_readonly(parse_url(result.url))
    try:
        with Session(engine) as session:
            return compared(session, find_run(session, result.manifest.run), result.proof, key, place)
    finally:
        engine.dispose()


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
