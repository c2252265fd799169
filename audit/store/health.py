"""Check a store's health: triggers and views as made, references valid, every run and every row of the log unchanged.

This module only reads; nothing repairs a damaged store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.store.base.values import RunStatus
from audit.store.base.violations import IntegrityViolation
from audit.store.ledger import log_check, log_scan, trigger_texts
from audit.store.sums import sums
from audit.store.tables import view_texts
from audit.store.tables.runs import RunRow
from audit.store.writing import integrity


def damaged_guards(session: Session) -> Iterator[IntegrityViolation]:
    """Append-only triggers that are missing, altered or not the store's own."""
    expected = trigger_texts.expected(session.get_bind().dialect.name)
    stored = trigger_texts.stored(session)
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            yield IntegrityViolation(name, "the append-only trigger is missing")
        elif name not in expected:
            yield IntegrityViolation(name, "the trigger does not belong to the store")
        elif expected[name] != stored[name]:
            yield IntegrityViolation(name, "the append-only trigger was altered")


def damaged_views(engine: Engine) -> Iterator[IntegrityViolation]:
    """The store's own views that are missing or altered; a user may add others."""
    queries = view_texts.expected(engine.dialect.name)
    with engine.connect() as connection:
        try:
            expected, stored = view_texts.rewritten(connection, queries), view_texts.stored(connection)
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0]
            yield IntegrityViolation("views", f"cannot be compared with those of this version: {reason}")
            return
    for name in expected:
        if name not in stored:
            yield IntegrityViolation(name, "the view is missing")
        elif expected[name] != stored[name]:
            yield IntegrityViolation(name, "the view was altered")


def damage(session: Session, runs: Sequence[str] = ()) -> Iterator[IntegrityViolation]:
    """All damage of the store but its views; of its runs the named ones or all."""
    yield from damaged_guards(session)
    if session.get_bind().dialect.name == "sqlite":
        yield from _sqlite_damage(session)
    yield from log_check.damage(session, log_scan.scan(session))
    yield from sums.astray(session)
    query = select(RunRow).where(RunRow.ulid.in_(runs)) if runs else select(RunRow)
    for run in session.scalars(query.order_by(RunRow.id)):
        rows = integrity.broken_places(session, run, rooted=bool(runs) or run.status == RunStatus.FINISHED)
        # sums of edited rows differ as a consequence
        for broken in rows or sums.damage(session, run):
            yield IntegrityViolation(f"{run.ulid} {broken.place}", broken.message)


def _sqlite_damage(session: Session) -> Iterator[IntegrityViolation]:
    for row in session.execute(text("PRAGMA foreign_key_check")):
        yield IntegrityViolation(f"{row[0]} row {row[1]}", f"refers to a row of {row[2]} that does not exist")
    for message in session.execute(text("PRAGMA quick_check(10)")).scalars():
        if message != "ok":
            yield IntegrityViolation("file", str(message))
