"""The rows of one run, table by table, with keys numbered from 1, so that they do not depend on the store.

Rows stand in the order in which the store got them; shared rows in the order of their natural keys. Large tables are
read in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Select, Table, or_, select, union
from sqlalchemy.orm import Session

from audit.store.base.canonical import to_json
from audit.store.bundle.tables import RUN, Row, kind_of, natural_key, owned, owner, parents, travelling
from audit.store.tables.runs import Base

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
