"""Write docs/data-dictionary.md from the store's tables and views.

``python -m docs.tools.dictionary_page docs/data-dictionary.md`` writes the page; a test compares it with the store
and requires a description of every column.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Table, inspect

from audit.store import migrate
from audit.store.tables.runs import Base
from docs.tools.dictionary_words import COLUMNS, OF_TABLE, TITLES
from docs.tools.written_page import page_writer
from tests.audit.store.build import connected

HEAD: Final = """\
# Data dictionary

Every table and view of [the store](store.md) with every column, for readers with nothing but `sqlite3`, `psql` or
DuckDB. `make docs` regenerates this page from the store's own description. [Ask the store](how-to/ask-the-store.md) has
queries.

The same views exist on SQLite and on PostgreSQL. Times are UTC, digests hex SHA-256, durations microseconds,
log-probabilities natural logarithms. NULL means not known or not applicable, never 0. Values of p, q and logprob in SQL
are rounded to a thousandth of a nat; the exact numbers are in `token_trace`.
"""


def columns_of_views() -> dict[str, list[str]]:
    """The columns of every view of a fresh store."""
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "audit.db")
        migrate.upgrade(url)
        with connected(url, read_only=True) as connection:
            found = inspect(connection)
            return {name: [each["name"] for each in found.get_columns(name)] for name in sorted(found.get_view_names())}


def described(table: str, column: str) -> str:
    """The description of a column: the table's own, else the general one.

    Raises:
        KeyError: it has none.
    """
    return OF_TABLE[f"{table}.{column}"] if f"{table}.{column}" in OF_TABLE else COLUMNS[column]


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "## Views\n", *_views(), "## Tables\n", *_tables()])


def _views() -> Iterator[str]:
    for name, columns in columns_of_views().items():
        rows = "\n".join(f"| `{column}` | {described(name, column)} |" for column in columns)
        yield f"### {name}\n\n{TITLES[name]}\n\n| column | meaning |\n|---|---|\n{rows}\n"


def _tables() -> Iterator[str]:
    for name, table in sorted(Base.metadata.tables.items()):
        rows = "\n".join(_row(name, column) for column in table.columns)
        yield f"### {name}\n\n{TITLES[name]}\n\n| column | type | meaning |\n|---|---|---|\n{rows}\n"


def _row(table: Table, column: Column[Any]) -> str:
    kind = str(column.type).lower() + (", may be NULL" if column.nullable else "")
    links = "".join(f"; refers to `{key.target_fullname}`" for key in column.foreign_keys)
    return f"| `{column.name}` | {kind} | {described(table, column.name)}{links} |"


write = page_writer(page)

if __name__ == "__main__":
    write()
