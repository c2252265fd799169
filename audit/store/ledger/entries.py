"""The bytes that entries of the log hash, read from the rows as the database holds them.

The bytes are a JSON list in ASCII: the kind, then the stored values without trailing NULLs. A JSON document enters as
its stored text, a moment as text in UTC, bytes as hex.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, DateTime, LargeBinary, TypeDecorator
from sqlalchemy.orm import Session

from audit.store.ledger.coverage import COVERED, RUN_STATE, Covered
from audit.store.tables.runs import Base

STATE: Final = "state"
"""Kind of an entry that holds a run's status, end and record root; its last one is valid."""
KINDS: Final[Mapping[str, Covered]] = {**COVERED, STATE: RUN_STATE}
"""The columns that an entry of a kind hashes, in the order in which one transaction logs its rows."""
CHUNK: Final = 500
"""Keys that one query asks for."""
BULK: Final = 2048
"""Rows that are read at once: a power of two, because they make a subtree of the log."""
BETWEEN: Final = "],["

_encode = json.JSONEncoder(separators=(",", ":"), default=lambda value: {"hex": bytes(value).hex()}).encode


@dataclass(frozen=True, slots=True)
class RowEntry:
    """An entry of the log: its kind, the row's primary key as text, and the bytes that it hashes."""

    kind: str
    ref: str
    data: bytes


def data_of(kind: str, values: Sequence[Any]) -> bytes:
    """The bytes of an entry."""
    return _encode(_listed(kind, values)).encode("ascii")


def _listed(kind: str, values: Sequence[Any]) -> list[Any]:
    end = len(values)
    while end and values[end - 1] is None:
        end -= 1
    return [kind, *values[:end]]


def data_of_many(kind: str, rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """The bytes of many entries of a kind, from one call of the encoder where their texts can be told apart."""
    parts = _encode([_listed(kind, values) for values in rows])[2:-2].split(BETWEEN)
    if len(parts) != len(rows):  # a value holds these characters too
        return [data_of(kind, values) for values in rows]
    return [f"[{part}]".encode("ascii") for part in parts]


def ref_of(keys: Sequence[Any]) -> str:
    """A primary key as text."""
    return str(keys[0]) if len(keys) == 1 else _encode(list(keys))


def rows(session: Session, kind: str, firsts: Iterable[Any] | None = None) -> Iterator[RowEntry]:
    """The stored rows in the order of their keys: all, or those whose first key column is among `firsts`."""
    for refs, data in batches(session, kind, firsts):
        yield from map(partial(RowEntry, kind), refs, data)


def batches(
    session: Session, kind: str, firsts: Iterable[Any] | None = None
) -> Iterator[tuple[list[str], list[bytes]]]:
    """The keys and the bytes of `rows`, those of many rows at a time."""
    covered = KINDS[kind]
    table, dialect, keys = Base.metadata.tables[covered.table], session.get_bind().dialect.name, covered.keys
    query = f"SELECT {', '.join(_stored(table.c[name], dialect) for name in covered.columns)} FROM {covered.table}"
    order = " ORDER BY " + ", ".join(str(place + 1) for place in range(keys))
    for condition in _conditions(covered.columns[0], firsts):
        for part in in_bulk(session, query + condition + order):
            refs = [str(values[0]) for values in part] if keys == 1 else [ref_of(values[:keys]) for values in part]
            yield refs, data_of_many(kind, part)


def in_bulk(session: Session, query: str) -> Iterator[Sequence[Sequence[Any]]]:
    """The rows of a query, `BULK` at a time: one at a time takes twice as long."""
    return session.connection().exec_driver_sql(query).partitions(BULK)


def _conditions(column: str, firsts: Iterable[Any] | None) -> Iterator[str]:
    """WHERE clauses of at most `CHUNK` keys each; key columns that come first are integers."""
    if firsts is None:
        yield ""
        return
    keys = sorted({int(first) for first in firsts})
    for begin in range(0, len(keys), CHUNK):
        yield f" WHERE {column} IN ({', '.join(map(str, keys[begin : begin + CHUNK]))})"


def _stored(column: Column[Any], dialect: str) -> str:
    """SQL of a column's stored value; SQLite's driver converts nothing, PostgreSQL's does."""
    if dialect != "postgresql":
        return column.name
    kind = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if isinstance(kind, JSON):
        return f"CAST({column.name} AS TEXT)"
    if isinstance(kind, DateTime):
        return f"CAST({column.name} AT TIME ZONE 'UTC' AS TEXT)"
    if isinstance(kind, Boolean):
        return f"CAST({column.name} AS INTEGER)"
    return f"encode({column.name}, 'hex')" if isinstance(kind, LargeBinary) else column.name
