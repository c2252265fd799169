"""Finds runs and arms by name, and makes values of rows."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.tables.runs import ArmRow, RunRow

T = TypeVar("T")


def now() -> datetime:
    """The current moment in UTC."""
    return datetime.now(UTC)


def find_run(session: Session, ulid: str) -> RunRow:
    """The run with exactly that ULID.

    Raises:
        UserError: the store has no such run.
    """
    run = session.scalars(select(RunRow).where(RunRow.ulid == ulid)).one_or_none()
    if run is None:
        raise UserError(f"no run {ulid} in this store; see: audit list")
    return run


def find_arm(session: Session, run: RunRow, name: str) -> ArmRow:
    """A run's arm by name.

    Raises:
        UserError: the run has no such arm.
    """
    arm = session.scalars(select(ArmRow).where(ArmRow.run_id == run.id, ArmRow.name == name)).one_or_none()
    if arm is None:
        known = ", ".join(session.scalars(select(ArmRow.name).where(ArmRow.run_id == run.id).order_by(ArmRow.id)))
        raise UserError(f"run {run.ulid} has no arm {name!r}; it has: {known}")
    return arm


def value_of(kind: type[T], row: Any, /, **other: Any) -> T:
    """A value whose fields are the row's columns of the same names, apart from the `other` ones."""
    names = (field.name for field in fields(cast(Any, kind)) if field.init and field.name not in other)
    return kind(**{name: getattr(row, name) for name in names}, **other)
