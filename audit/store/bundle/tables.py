"""Which tables travel in a bundle, and their rows as JSON: taken from the tables themselves, so new columns travel too.

A table belongs to the run if a foreign key leads from it to `run`. Other tables are shared: the rows that the run
refers to travel, and rows of tables that describe those. Rows of a run have keys numbered from 1, so that they do not
depend on the store; they stand in the order in which the store got them, shared rows in that of their natural keys.

"""

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Column, MetaData, Select, String, Table, TypeDecorator, UniqueConstraint, or_, select, union
from sqlalchemy.orm import Session

from audit.store.base.canonical import storable, to_json
from audit.store.tables.foreign_values import MAPPINGS, WORDS
from audit.store.tables.runs import Base

LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "alembic_version": "the manifest names the revision",
        "log_entry": "each store has its own log; an import logs what it copies",
        "checkpoint": "it is of the log",
        "run_sums": "the store that imports a run makes them from its rows",
        "watch": "a watch goes on after its run; each store has its own",
        "watch_reading": "it is of the watch",
        "registration": "its place in the store's own log is what it shows; a run's statement carries the proof",
    }
)
"""Tables that do not travel, with the reason."""
RUN: Final = "run"
INT64: Final = range(-(2**63), 2**63)
DEEPEST: Final = 60
"""Nesting of a JSON value at most."""
INFINITIES: Final = {math.inf: "inf", -math.inf: "-inf"}

Row = dict[str, Any]


def travelling(metadata: MetaData) -> list[Table]:
    """The tables of a bundle; a table comes after those that it refers to."""
    return [table for table in metadata.sorted_tables if table.name not in LEFT_OUT]


def parents(table: Table) -> dict[str, str]:
    """The tables that the columns of a table refer to."""
    result = {}
    for column in table.columns:
        for key in column.foreign_keys:
            result[column.name] = key.target_fullname.split(".")[0]
    return result


def owned(metadata: MetaData) -> set[str]:
    """Names of the tables that belong to a run, `run` itself included."""
    names = {RUN}
    for table in metadata.sorted_tables:
        if names & set(parents(table).values()):
            names.add(table.name)
    return names


def owner(table: Table, of_run: set[str]) -> str:
    """The column by which a table's rows belong to a run: to `run` itself if there is one."""
    keys = [name for name, target in parents(table).items() if target in of_run]
    return min(keys, key=lambda name: (parents(table)[name] != RUN, table.c[name].nullable))


def natural_key(table: Table) -> tuple[str, ...]:
    """The columns that name a row in every store: a unique set of columns, else the primary key."""
    unique = [constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
    named = [tuple(column.name for column in item.columns) for item in unique]
    named += [(column.name,) for column in table.columns if column.unique]
    return min(named) if named else tuple(column.name for column in table.primary_key.columns)


def kind_of(column: Column[Any]) -> type:
    """The Python type of a column's values; dict for every JSON value."""
    kind = column.type
    return (kind.impl_instance if isinstance(kind, TypeDecorator) else kind).python_type


def encoded(table: Table, row: Mapping[str, Any]) -> Row:
    """A row as JSON values: bytes in base 64, moments in ISO 8601 (UTC), infinities as text."""
    return {column.name: _encoded(row[column.name]) for column in table.columns}


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    return INFINITIES.get(value, value) if isinstance(value, float) else value


def decoded(table: Table, row: Any) -> Row:
    """A row of a bundle as values for the table.

    Raises:
        ValueError: a column is missing, unknown, or holds another kind of value; the message says which.
    """
    if not isinstance(row, dict):
        raise ValueError("a row is no JSON object")
    columns = {column.name: column for column in table.columns}
    for name in sorted(columns.keys() ^ row.keys()):
        raise ValueError(f"column {name[:60]!r} is {'missing' if name in columns else 'unknown'}")
    values = {name: _decoded(column, row[name]) for name, column in columns.items()}
    for name, value in values.items():
        # whatever reads the store later takes these for granted
        if value is not None and value not in WORDS.get((table.name, name), (value,)):
            raise ValueError(f"column {name!r}: {value[:20]!r} is no word of this version")
        if (table.name, name) in MAPPINGS and not isinstance(value, dict):
            raise ValueError(f"column {name!r}: no JSON object")
    return values


def _decoded(column: Column[Any], value: Any) -> Any:
    kind = kind_of(column)
    if value is None:
        if column.nullable or kind in (dict, list):
            return None
        raise ValueError(f"column {column.name!r} is null")
    try:
        return _of_kind(kind, column, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {column.name!r}: {error}") from error


def _of_kind(kind: type, column: Column[Any], value: Any) -> Any:
    if kind is float:
        return float(value) if value in ("inf", "-inf") else float(_checked(value, (int, float)))
    if kind is bytes:
        return _bytes(_checked(value, (str,)))
    if kind is datetime:
        return _moment(_checked(value, (str,)))
    if kind is str:
        return _text(column, _checked(value, (str,)))
    if kind is int:
        if _checked(value, (int,)) not in INT64:
            raise ValueError("a whole number beyond 64 bits")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError("neither true nor false")
        return value
    return _shallow(value, DEEPEST)


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"a {type(value).__name__} where {kinds[-1].__name__} belongs")
    return value


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base 64") from error


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or moment.astimezone(UTC).isoformat() != text:
        raise ValueError("not a moment in UTC")
    return moment


def _text(column: Column[Any], text: str) -> str:
    length = column.type.length if isinstance(column.type, String) else None
    if length is not None and len(text) > length:
        raise ValueError(f"text longer than {length} characters")
    if storable(text) != text:
        raise ValueError("text with a character that no store holds")
    return text


def _shallow(value: Any, room: int) -> Any:
    """The value, if it is nested no deeper than `room`."""
    if room < 0:
        raise ValueError(f"nested deeper than {DEEPEST}")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        _shallow(item, room - 1)
    return value


PIECE: Final = 200
"""Rows to fetch at once."""


class RunRows:
    """The rows of one run in an open session."""

    def __init__(self, session: Session, run_id: int) -> None:
        self._session = session
        self._run_id = run_id
        self._tables = {table.name: table for table in travelling(Base.metadata)}
        self._owned = owned(Base.metadata)
        self._numbers: dict[str, dict[int, int]] = {}

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables in the order in which `of` must be asked: a table follows those that it refers to."""
        return tuple(self._tables.values())

    def is_owned(self, table: Table) -> bool:
        """True if the table's rows belong to one run, False if runs share them."""
        return table.name in self._owned

    def of(self, table: Table) -> Iterator[Row]:
        """The run's rows of a table as Python values; `id` and references are numbers within the run."""
        keys, numbers = parents(table), self._numbers.setdefault(table.name, {})
        for number, values in enumerate(self._stored(table), 1):
            row = dict(values)
            if "id" in row:
                numbers[row["id"]] = number
                row["id"] = number
            for name, target in keys.items():
                row[name] = None if row[name] is None else self._numbers[target][row[name]]
            yield row

    def _stored(self, table: Table) -> Iterator[Row]:
        query = select(table).where(self._mine(table))
        if self.is_owned(table) and all(kind_of(column) is int for column in table.primary_key.columns):
            result = self._session.execute(
                query.order_by(*table.primary_key.columns).execution_options(yield_per=PIECE)
            )
            yield from (dict(row._mapping) for row in result)
            return
        # sorted here and not in SQL, because databases differ in their collation
        rows = [dict(row._mapping) for row in self._session.execute(query)]
        yield from sorted(rows, key=lambda row: self._key(table, row))

    def _key(self, table: Table, row: Row) -> str:
        """A row's natural key as text, its references as numbers within the run."""
        keys, values = parents(table), {}
        for name in natural_key(table):
            value = self._numbers[keys[name]][row[name]] if name in keys else row[name]
            values[name] = f"{value:020d}" if isinstance(value, int) else value
        return to_json(list(values.values()))

    def _mine(self, table: Table) -> Any:
        """The condition that a row belongs to the run, or is referred to by a row that does."""
        if table.name == RUN:
            return table.c.id == self._run_id
        if self.is_owned(table):
            column = owner(table, self._owned)
            return table.c[column].in_(self._ids(self._tables[parents(table)[column]]))
        described = [table.c[name].in_(self._ids(self._tables[target])) for name, target in parents(table).items()]
        return or_(*described) if described else table.c.id.in_(self._referred(table))

    def _ids(self, table: Table) -> Select[Any]:
        return select(table.c.id).where(self._mine(table))

    def _referred(self, table: Table) -> Any:
        """Keys of shared rows that rows of the run refer to."""
        queries = [
            select(other.c[name]).where(self._mine(other))
            for other in self._tables.values()
            for name, target in parents(other).items()
            if target == table.name and self.is_owned(other)
        ]
        return select(union(*queries).subquery().columns[0])
