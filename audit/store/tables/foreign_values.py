"""Finds the place of a stored value that nothing in this program writes, when something has gone wrong with it.

SQLite keeps any value in any column, and reading everything twice would cost too much. So the store looks for odd
values only after a failure; a failure without an odd row or other damage is a bug and stays one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, DateTime, Engine, Float, Integer, LargeBinary, String, Table
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.types import TypeDecorator, TypeEngine

from audit.errors import CannotDecide
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Verdict
from audit.store.base.connection import READING
from audit.store.base.values import IntegrityViolation, RunStatus
from audit.store.tables.runs import Base

WORDS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("run", "status"): frozenset(RunStatus),
    ("run_event", "status"): frozenset(RunStatus),
    ("arm", "kind"): frozenset(ArmKind),
    ("arm", "level"): frozenset(Level.__members__),
    ("check_result", "verdict"): frozenset(Verdict),
    ("check_result", "level"): frozenset(Level.__members__),
}
"""Columns that hold one of a few words."""
MAPPINGS: Final = frozenset(
    (
        *(("arm", name) for name in ("spec", "effective")),
        *(("environment", name) for name in ("packages", "hardware", "code")),
        ("run", "config"),
        ("artifact", "manifest"),
    )
)
"""Columns whose JSON is an object."""
SHOWN: Final = 60
UNFORESEEN: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, InvalidRequestError)
"""Exceptions of code on values that it does not expect; the harness's own exceptions are none of them."""


def blame(
    error: BaseException | None, engine: Engine, url: str, damage: Callable[[], Sequence[IntegrityViolation]]
) -> None:
    """Raise the place of the stored value behind an error; return if there is none, so that a bug stays one.

    Raises:
        CannotDecide: the store holds what this program never writes.
    """
    if not isinstance(error, UNFORESEEN):
        return
    place = first_odd(engine) if engine.dialect.name == "sqlite" else None
    if place is None:
        # reading may fail on the same value
        with suppress(*UNFORESEEN):
            changed = damage()
            place = f"{changed[0].place}: {changed[0].message}" if changed else None
    if place is not None:
        text = " ".join(place.split())
        raise CannotDecide(f"{url}: {text}; nothing here writes that: run audit db check, or restore a copy") from error


def first_odd(engine: Engine) -> str | None:
    """The place of the first odd value, with the value; None if there is none."""
    with engine.execution_options(**{READING: True}).connect() as connection:
        for table in Base.metadata.sorted_tables:
            # without SQLAlchemy's types, which fail on odd values
            rows = connection.exec_driver_sql(f"SELECT * FROM {table.name}")
            names = list(rows.keys())
            for row in rows:
                odd = next(_odd(table, dict(zip(names, row, strict=True))), None)
                if odd is not None:
                    return odd
    return None


def _odd(table: Table, row: Mapping[str, Any]) -> Iterator[str]:
    key = ", ".join(str(row[column.name])[:SHOWN] for column in table.primary_key)
    for column in table.columns:
        if column.name in row and not _fits(table.name, column, row[column.name]):
            yield f"{table.name} row {key}: {column.name} is {repr(row[column.name])[:SHOWN]}"


def _fits(table: str, column: Column[Any], value: Any) -> bool:
    if value is None:
        return bool(column.nullable)
    words = WORDS.get((table, column.name))
    if (table, column.name) in MAPPINGS and not _parses(_mapping, value):
        return False
    return _of_type(column.type, value) and (words is None or value in words)


def _mapping(value: Any) -> None:
    if not isinstance(json.loads(value), dict):
        raise TypeError("no object")


def _of_type(kind: TypeEngine[Any], value: Any) -> bool:
    inner = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    return next((test(value) for types, test in TESTS if isinstance(inner, types)), True)


def _parses(read: Callable[[str], Any], value: Any) -> bool:
    try:
        read(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


TESTS: Final[tuple[tuple[type[Any], Callable[[Any], bool]], ...]] = (
    (Boolean, lambda value: value in {0, 1}),
    (Integer, lambda value: isinstance(value, int)),
    (Float, lambda value: isinstance(value, int | float)),
    (JSON, lambda value: isinstance(value, str) and _parses(json.loads, value)),
    (DateTime, lambda value: _parses(datetime.fromisoformat, value)),
    (LargeBinary, lambda value: isinstance(value, bytes)),
    (String, lambda value: isinstance(value, str)),
)
"""SQLite's values of a column, by type; the first type that fits decides."""
