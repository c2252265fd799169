"""Check a store's health: triggers as made, references valid, every run and every row of the log unchanged.

This module only reads; nothing repairs a damaged store. A trigger of the right name may do nothing, so the texts of
triggers are compared. Every row that the log covers is compared with its entry. Cannot see: a log that was recomputed
as a whole, or cut together with its rows. A checkpoint kept outside the store shows both (`audit.store.ledger.notes`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from audit.store.base.merkle import leaf_hash
from audit.store.base.values import IntegrityViolation, RunStatus
from audit.store.ledger import entries, log_scan
from audit.store.ledger.coverage import COVERED, RUN_STATE
from audit.store.ledger.entries import STATE
from audit.store.ledger.log_scan import Scan
from audit.store.sums import sums
from audit.store.tables.content import CONTENT, FINDING, ErasureRow
from audit.store.tables.runs import APPEND_ONLY, ERASABLE, RunRow
from audit.store.writing import integrity

EVENTS: Final = ("UPDATE", "DELETE")
REFUSE: Final = """
BEGIN
  RAISE EXCEPTION 'the store is append-only: % on % refused', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END """
"""Body of PostgreSQL's function `audit_refuse`."""
REFUSE_KEPT: Final = """
DECLARE erased boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM erasure WHERE %I = ($1).%I AND what = %L)',
                 TG_ARGV[0], TG_ARGV[0], TG_ARGV[1]) USING OLD INTO erased;
  IF NOT erased THEN
    RAISE EXCEPTION 'the store is append-only: % on % refused: no erasure names the row', TG_OP, TG_TABLE_NAME
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN OLD;
END """
"""Body of PostgreSQL's function `audit_refuse_kept`."""
ERASED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "content": ("request_id", CONTENT),
    "request_tokens": ("request_id", CONTENT),
    "token_trace": ("request_id", CONTENT),
    "tool_event": ("request_id", CONTENT),
    "finding": ("check_result_id", FINDING),
}
"""Key and kind of the erasure that lets a row of a table go."""
TRIGGERS: Final = """
SELECT tgname, pg_get_triggerdef(pg_trigger.oid), tgenabled, prosrc
FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE NOT tgisinternal AND relnamespace = CAST(current_schema() AS regnamespace)
"""
EDITED = "the row was edited after it was logged"
DELETED = "the row was deleted after it was logged"
UNLOGGED = "no entry of the log covers it: it was inserted past the log, or the end of the log was cut"


Damaged = tuple[int, IntegrityViolation]
"""Damage with the entry that shows it; the log's size if none does."""


def log_damage(session: Session, scanned: Scan) -> Iterator[IntegrityViolation]:
    """Every difference between the rows and their entries, and every entry that does not fit, first entry first."""
    result = [(seq, IntegrityViolation(f"log entry {seq}", message)) for seq, message in scanned.problems]
    for kind in COVERED:
        result.extend(_differences(session, kind, scanned))
    result.extend(_changed_states(session, scanned))
    # rows without an entry come last
    yield from (violation for _, violation in sorted(result, key=itemgetter(0)))


def _differences(session: Session, kind: str, scanned: Scan) -> Iterator[Damaged]:
    logged = dict(scanned.logged.get(kind, {}))
    gone, leaves = erased(session, kind), scanned.leaves
    for refs, rows in entries.batches(session, kind):
        for ref, data in zip(refs, rows, strict=True):
            seq = logged.pop(ref, None)
            if seq is None:
                yield scanned.size, IntegrityViolation(f"{kind} {ref}", UNLOGGED)
            elif leaves[seq] != leaf_hash(data):
                yield _damaged(kind, ref, seq, EDITED)
    yield from (_damaged(kind, ref, seq, DELETED) for ref, seq in logged.items() if ref not in gone)


def erased(session: Session, kind: str) -> frozenset[str]:
    """Keys of the rows that an erasure names, which may be missing."""
    named = {"token_trace": (ErasureRow.request_id, CONTENT), "finding": (ErasureRow.check_result_id, FINDING)}
    if kind not in named:
        return frozenset()
    key, what = named[kind]
    return frozenset(str(item) for item in session.scalars(select(key).where(ErasureRow.what == what)))


def _changed_states(session: Session, scanned: Scan) -> Iterator[Damaged]:
    logged = scanned.logged.get(STATE, {})
    for row in entries.rows(session, STATE):
        seq = logged.get(row.ref)
        if seq is not None and scanned.leaves[seq] != leaf_hash(row.data):
            changes = _changes(scanned.texts.get(seq), row.data)
            yield _damaged("run", row.ref, seq, f"its state was edited: {changes}")
        elif seq is None and row.ref in scanned.logged.get("run", {}):
            yield scanned.size, IntegrityViolation(f"run {row.ref}", "no entry of the log holds its state")


def _damaged(kind: str, ref: str, seq: int, message: str) -> Damaged:
    return seq, IntegrityViolation(f"log entry {seq}: {kind} {ref}", message)


def _changes(logged: str | None, stored: bytes) -> str:
    """The columns that differ, with both values."""
    try:
        before = json.loads(logged or "[]")
    except ValueError:
        return "its entry is damaged"
    after: list[Any] = json.loads(stored)
    names = ("", *RUN_STATE.columns)
    width = len(names)
    pairs = zip(names, _padded(before, width), _padded(after, width), strict=True)
    return ", ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new)


def _padded(values: list[Any], width: int) -> list[Any]:
    return [*values, *[None] * (width - len(values))][:width]


def damaged_guards(session: Session) -> Iterator[IntegrityViolation]:
    """Append-only triggers that are missing, altered or not the store's own."""
    expected = expected_triggers(session.get_bind().dialect.name)
    stored = stored_triggers(session)
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            yield IntegrityViolation(name, "the append-only trigger is missing")
        elif name not in expected:
            yield IntegrityViolation(name, "the trigger does not belong to the store")
        elif expected[name] != stored[name]:
            yield IntegrityViolation(name, "the append-only trigger was altered")


def damage(session: Session, runs: Sequence[str] = ()) -> Iterator[IntegrityViolation]:
    """All damage of the store but its views; of its runs the named ones or all."""
    yield from damaged_guards(session)
    if session.get_bind().dialect.name == "sqlite":
        for row in session.execute(text("PRAGMA foreign_key_check")):
            yield IntegrityViolation(f"{row[0]} row {row[1]}", f"refers to a row of {row[2]} that does not exist")
        for message in session.execute(text("PRAGMA quick_check(10)")).scalars():
            if message != "ok":
                yield IntegrityViolation("file", str(message))
    yield from log_damage(session, log_scan.scan(session))
    yield from sums.astray(session)
    query = select(RunRow).where(RunRow.ulid.in_(runs)) if runs else select(RunRow)
    for run in session.scalars(query.order_by(RunRow.id)):
        rows = integrity.broken_places(session, run, rooted=bool(runs) or run.status == RunStatus.FINISHED)
        # sums of edited rows differ as a consequence
        for broken in rows or sums.damage(session, run):
            yield IntegrityViolation(f"{run.ulid} {broken.place}", broken.message)


def expected_triggers(dialect: str) -> Mapping[str, str]:
    """The text of each trigger by name, of `sqlite` or `postgresql`."""
    texts: dict[str, str] = {}
    for table in (*APPEND_ONLY, "run"):
        for action in (*EVENTS, "TRUNCATE") if dialect == "postgresql" else EVENTS:
            name = f"guard_{table}_{action.lower()}"
            texts[name] = _postgresql(name, table, action) if dialect == "postgresql" else _sqlite(name, table, action)
    return texts


def _event(table: str, action: str) -> str:
    fixed = table == "run" and action == "UPDATE"
    return f"UPDATE OF {', '.join(COVERED['run'].columns)}" if fixed else action


def _sqlite(name: str, table: str, action: str) -> str:
    if table in ERASABLE and action == "DELETE":
        key, what = ERASED_BY[table]
        named = f"SELECT 1 FROM erasure WHERE erasure.{key} = OLD.{key} AND erasure.what = '{what}'"
        return (
            f"CREATE TRIGGER {name} BEFORE DELETE ON {table} FOR EACH ROW WHEN NOT EXISTS ({named}) BEGIN SELECT "
            f"RAISE(ABORT, 'the store is append-only: DELETE on {table} refused: no erasure names the row'); END"
        )
    return (
        f"CREATE TRIGGER {name} BEFORE {_event(table, action)} ON {table} FOR EACH ROW "
        f"BEGIN SELECT RAISE(ABORT, 'the store is append-only: {action} on {table} refused'); END"
    )


def _postgresql(name: str, table: str, action: str) -> str:
    item = "STATEMENT" if action == "TRUNCATE" else "ROW"
    head = f"CREATE TRIGGER {name} BEFORE {_event(table, action)} ON public.{table} FOR EACH {item}"
    if table in ERASABLE and action == "DELETE":
        key, what = ERASED_BY[table]
        return f"{head} EXECUTE FUNCTION audit_refuse_kept('{key}', '{what}') O {REFUSE_KEPT}"
    return f"{head} EXECUTE FUNCTION audit_refuse() O {REFUSE}"


def stored_triggers(session: Session) -> Mapping[str, str]:
    """The text of each trigger of the store by name."""
    if session.get_bind().dialect.name != "postgresql":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        return {row.name: row.sql for row in session.execute(text(query))}
    rows = session.execute(text(TRIGGERS))
    return {name: f"{definition} {_state(enabled)} {source}" for name, definition, enabled, source in rows}


def _state(enabled: str | bytes) -> str:
    return enabled.decode("ascii") if isinstance(enabled, bytes) else enabled
