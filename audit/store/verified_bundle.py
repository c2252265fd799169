"""Verifies a bundle without a store: every hash is recomputed from the rows, by the code that checks stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import zstandard
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DatabaseError, StatementError
from sqlalchemy.orm import Session

from audit.store import migrate
from audit.store.base.connection import open_engine, open_readonly, parse_url
from audit.store.base.keys import PublicKey
from audit.store.base.values import IntegrityViolation, RunStatus
from audit.store.bundle.archive import LOG, Manifest, Reader, parse_line, part_name, reading, refusal
from audit.store.bundle.inclusion import BundleInclusion, compared
from audit.store.bundle.tables import RUN, Row, decoded, travelling
from audit.store.ledger import log
from audit.store.store import Store
from audit.store.tables.runs import REVISION, Base, find_run
from engine.record.envelope import MAGIC

FREE: Final[Mapping[str, tuple[str, ...]]] = {
    "artifact": ("name", "revision", "manifest"),
    "run": ("actor", "status", "started_at", "finished_at", "config", "tokens", "content_root", "exit_code"),
    "run_event": ("status", "at", "detail"),
    "token_trace": ("format", "n_events"),
    "token_piece": ("token", "piece"),
    "erasure": ("check_result_id", "reason", "actor", "created_at"),
    **dict.fromkeys(("check_result", "coverage", "judgement", "gate_decision", "attachment", "attestation"), ("*",)),
}
"""Columns of a bundle that no hash of its record covers; those of a log do, if the bundle has a checkpoint."""
PIECE: Final = 100
"""Rows to insert at once."""
TRACE_BYTES: Final = 2**30
"""Uncompressed bytes of one trace at most."""


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

    The key verifies the signature of the bundle's checkpoint.

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


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The URL of a temporary store with the bundle's run alone, the manifest, and the log's proof as JSON or None."""

    url: str
    manifest: Manifest
    proof: Any


@contextmanager
def unpacked(path: Path) -> Iterator[Unpacked]:
    """A bundle's run in a temporary store.

    Raises:
        UserError: the bundle is refused; the message names the part and the reason.
    """
    with reading(path) as reader, TemporaryDirectory(prefix="audit-bundle-") as folder:
        url = f"sqlite:///{Path(folder) / 'bundle.db'}"
        manifest = reader.manifest
        if manifest.revision != REVISION:
            other = f"of revision {manifest.revision[:20]!r}; this version of audit reads {REVISION}"
            raise refusal(path, "manifest.json", f"{other}: export the run again with this version")
        for name in sorted(manifest.parts):
            for _line in reader.lines(name):
                pass
        migrate.upgrade(url)
        _fill(reader, url)
        yield Unpacked(url, manifest, _proof(reader))


def _proof(reader: Reader) -> Any:
    if LOG not in reader.manifest.parts:
        return None
    lines = list(reader.lines(LOG))
    if len(lines) != 1:
        raise refusal(reader.path, LOG, f"has {len(lines)} lines instead of one")
    return parse_line(reader.path, LOG, lines[0])


def _fill(reader: Reader, url: str) -> None:
    engine = open_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            tables = {part_name(table.name): table for table in travelling(Base.metadata)}
            for name in sorted((tables.keys() ^ reader.manifest.parts.keys()) - {LOG}):
                raise refusal(reader.path, name, "is missing" if name in tables else "is unknown")
            for name, table in tables.items():
                _insert(reader, connection, name, table)
            with Session(connection, join_transaction_mode="rollback_only") as session:
                log.log_all(session)
                session.flush()
    finally:
        engine.dispose()


def _insert(reader: Reader, connection: Connection, name: str, table: Table) -> None:
    rows: list[Row] = []
    try:
        for number, line in enumerate(reader.lines(name), 1):
            rows.append(_row(reader, name, number, table, line))
            if len(rows) >= PIECE:
                connection.execute(table.insert(), rows)
                rows = []
        if rows:
            connection.execute(table.insert(), rows)
    except (DatabaseError, StatementError) as error:
        raise refusal(reader.path, name, f"its rows do not fit the table: {error.orig or error}") from error


def _row(reader: Reader, name: str, number: int, table: Table, line: bytes) -> Row:
    place = f"{name}:{number}"
    try:
        row = decoded(table, parse_line(reader.path, place, line))
    except ValueError as error:
        raise refusal(reader.path, place, error) from error
    if row.get("id", number) != number:
        raise refusal(reader.path, place, f"its id is not {number}")
    ended = row.get("record_root") and row.get("status") != RunStatus.RUNNING
    if table.name == RUN and (number > 1 or row["ulid"] != reader.manifest.run or not ended):
        raise refusal(reader.path, place, "not the one finished run of the manifest")
    if "payload" in row and _unpacked_bytes(row["payload"]) > TRACE_BYTES:
        raise refusal(reader.path, place, f"a trace that unpacks to more than {TRACE_BYTES >> 30} GiB")
    return row


def _unpacked_bytes(payload: bytes) -> int:
    """The size that a trace's frame states, which its decompression cannot exceed; 0 for what is no frame."""
    try:
        stated = zstandard.get_frame_parameters(payload[len(MAGIC) :]).content_size
    except zstandard.ZstdError:
        return 0
    return TRACE_BYTES + 1 if stated == zstandard.CONTENTSIZE_UNKNOWN else int(stated)
