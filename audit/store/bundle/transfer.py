"""Copies one run from a store to another: same id, other keys, one transaction.

A finished run as a bundle.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table, func, select, text
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.base.canonical import to_json
from audit.store.bundle.archive import LOG, part_name, writing
from audit.store.bundle.inclusion import inclusion_of
from audit.store.bundle.tables import Row, RunRows, encoded, natural_key, parents
from audit.store.ledger import log
from audit.store.ledger.entries import STATE
from audit.store.sums import sums
from audit.store.tables.runs import IMPORTED, REVISION, RunEventRow, RunRow
from audit.store.writing.integrity import broken_places

PIECE: Final = 100


def copy_run(source: Session, target: Session, ulid: str, origin: str) -> bool:
    """Copy a run with all its rows, and add the event that names the bundle; False if it is there already.

    `source` is a verified store, `target` one in a transaction; `origin` begins with the SHA-256 of the bundle.

    Raises:
        UserError: the target has the run with another content.
    """
    given = source.scalars(select(RunRow).where(RunRow.ulid == ulid)).one()
    there = target.scalars(select(RunRow).where(RunRow.ulid == ulid)).one_or_none()
    if there is not None:
        ours, theirs = RunRows(source, given.id), RunRows(target, there.id)
        for table, other in zip(ours.tables, theirs.tables, strict=True):
            if _digest(ours, table) != _digest(theirs, other):
                raise UserError(
                    f"run {ulid} is in this store with another content: table {table.name} differs; "
                    "import the bundle into another store and compare the two with audit diff"
                )
        return False
    _copy(RunRows(source, given.id), target)
    run = target.scalars(select(RunRow).where(RunRow.ulid == ulid)).one()
    target.add(RunEventRow(run_id=run.id, status=run.status, at=datetime.now(UTC), detail=f"{IMPORTED}{origin}"))
    sums.keep(target, run)
    for broken in broken_places(target, run):
        raise UserError(f"run {ulid}: {broken.place}: {broken.message}; nothing was imported")
    return True


def _copy(rows: RunRows, target: Session) -> None:
    keys: dict[str, dict[int, int]] = {}
    for table in rows.tables:
        result = keys.setdefault(table.name, {})
        pending: list[Row] = []
        for row in rows.of(table):
            above = parents(table).items()
            made = row | {name: None if row[name] is None else keys[parent][row[name]] for name, parent in above}
            if rows.is_owned(table) or not _known(table, made, row, target, result):
                pending.append(made)
            if "id" in row and row["id"] not in result:
                made["id"] = result[row["id"]] = _next_key(table, target, len(pending) - 1)
            if len(pending) >= PIECE:
                _insert(target, table, pending)
                pending = []
        _insert(target, table, pending)


def _insert(target: Session, table: Table, rows: list[Row]) -> None:
    log.insert_rows(target, table.name, rows)
    if table.name == RunRow.__tablename__:
        log.note(target, STATE, [[row["id"]] for row in rows])


def _known(table: Table, made: Row, row: Row, target: Session, mapping: dict[int, int]) -> bool:
    """True if the store has a shared row of this name; its key is kept in `found`."""
    first = next(iter(table.primary_key.columns))
    same = [table.c[name] == made[name] for name in natural_key(table)]
    key: Any = target.execute(select(first).where(*same)).scalar_one_or_none()
    if key is not None and "id" in row:
        mapping[row["id"]] = key
    return key is not None


def _next_key(table: Table, target: Session, pending: int) -> int:
    """A free key; the transaction's lock (SQLite) or the sequence (PostgreSQL) keeps it free."""
    if target.get_bind().dialect.name == "postgresql":
        query = text("SELECT nextval(pg_get_serial_sequence(:name, 'id'))")
        return int(target.execute(query, {"name": table.name}).scalar_one())
    return int(target.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one()) + 1 + pending


def _digest(rows: RunRows, table: Table) -> str:
    """Digest of the run's rows of a table, without the events of imports; of shared rows, their names alone."""
    total = hashlib.sha256()
    for row in rows.of(table):
        if table.name == RunEventRow.__tablename__ and row["detail"].startswith(IMPORTED):
            continue
        kept = encoded(table, row)
        kept.pop("id", None)
        names = kept if rows.is_owned(table) else natural_key(table)
        total.update(to_json({name: kept[name] for name in names}).encode("ascii") + b"\n")
    return total.hexdigest()


def write_bundle(session: Session, run: RunRow, path: Path) -> None:
    """Write all rows of a finished run to a zip file; equal rows and checkpoints give equal bytes.

    Raises:
        UserError: the run is not finished, or the file cannot be written.
        CannotDecide: a row is not as it was logged.
    """
    if run.record_root is None:
        raise UserError(f"run {run.ulid} is {run.status}; only a finished run has a record root and can be exported")
    rows = RunRows(session, run.id)
    with writing(path) as writer:
        for table in rows.tables:
            writer.part(part_name(table.name), (encoded(table, row) for row in rows.of(table)))
        proven = inclusion_of(session, run)
        if proven is not None:
            writer.part(LOG, (proven,))
        writer.manifest(run.ulid, run.record_root, REVISION)
