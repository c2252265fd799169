"""Check a store's health: triggers present, references valid, every finished run unchanged.

This module only reads; nothing repairs a damaged store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from audit.store import integrity
from audit.store.contents import IntegrityViolation
from audit.store.models import APPEND_ONLY, RunRow
from audit.store.values import RunStatus

EVENTS = ("update", "delete")


def expected_guards() -> frozenset[str]:
    """Names of the triggers of every database (PostgreSQL has more, for TRUNCATE)."""
    return frozenset(f"guard_{table}_{event}" for table in (*APPEND_ONLY, "run") for event in EVENTS)


def missing_guards(session: Session) -> tuple[str, ...]:
    """Missing append-only triggers, sorted."""
    if session.get_bind().dialect.name == "postgresql":
        query = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'"
    else:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    present = set(session.execute(text(query)).scalars())
    return tuple(sorted(expected_guards() - present))


def damage(session: Session, runs: Sequence[str] = ()) -> Iterator[IntegrityViolation]:
    """All damage of the store, or of the named runs only."""
    for name in missing_guards(session):
        yield IntegrityViolation(name, "the append-only trigger is missing")
    if session.get_bind().dialect.name == "sqlite":
        yield from _sqlite_damage(session)
    query = (
        select(RunRow).where(RunRow.ulid.in_(runs))
        if runs
        else select(RunRow).where(RunRow.status == RunStatus.FINISHED)
    )
    for run in session.scalars(query.order_by(RunRow.id)):
        for broken in integrity.broken_places(session, run):
            yield IntegrityViolation(f"{run.ulid} {broken.place}", broken.message)


def _sqlite_damage(session: Session) -> Iterator[IntegrityViolation]:
    for row in session.execute(text("PRAGMA foreign_key_check")):
        yield IntegrityViolation(f"{row[0]} row {row[1]}", f"refers to a row of {row[2]} that does not exist")
    for message in session.execute(text("PRAGMA quick_check(10)")).scalars():
        if message != "ok":
            yield IntegrityViolation("file", str(message))
