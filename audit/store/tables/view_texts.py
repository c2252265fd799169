"""The text of every view of a store, as the migrations make it, compared with what the database holds.

The migrations are the only place that states the views, so this module runs them without a database and reads their
SQL. SQLite keeps a view's text; PostgreSQL rewrites it, so there the expected text becomes a temporary view whose
rewritten text is compared, in a transaction that is rolled back.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, text

from audit.store.tables.runs import REVISION

MADE: Final = re.compile(r"(CREATE|DROP)(?: OR REPLACE)? VIEW (\w+)(?: AS(.*))?", re.DOTALL)
PROBE: Final = "audit_expected_view"
DEFINITION: Final = "SELECT pg_get_viewdef(CAST(:name AS regclass))"
STORED: Final = """
SELECT relname, pg_get_viewdef(pg_class.oid) AS definition FROM pg_class
WHERE relkind = 'v' AND relnamespace = CAST(current_schema() AS regnamespace)
"""


def expected(dialect: str) -> Mapping[str, str]:
    """The query of each view by name, of `sqlite` or `postgresql`, in the order of creation."""
    # imported here because only this check needs them
    from alembic import command
    from alembic.config import Config

    written = io.StringIO()
    made = Config(output_buffer=written)
    made.set_main_option("script_location", "migrations:")
    made.attributes["dialect"] = dialect
    command.upgrade(made, REVISION, sql=True)
    views: dict[str, str] = {}
    for statement in written.getvalue().split(";\n"):
        if (matched := MADE.match(statement.strip())) is None:
            continue
        action, name, query = matched.groups()
        views.pop(name, None)
        if action == "CREATE":
            views[name] = query.strip()
    return views


def stored(connection: Connection) -> Mapping[str, str]:
    """The query of each view that the database holds, by name."""
    if connection.dialect.name == "postgresql":
        return {row.relname: row.definition for row in connection.execute(text(STORED))}
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    return {row.name: matched.group(3).strip() if (matched := MADE.match(row.sql)) else row.sql for row in rows}


def rewritten(connection: Connection, queries: Mapping[str, str]) -> Mapping[str, str]:
    """The queries in the words of the database."""
    if connection.dialect.name != "postgresql":
        return queries
    connection.exec_driver_sql("SET TRANSACTION READ WRITE")  # a temporary view counts as writing
    texts: dict[str, str] = {}
    for name, query in queries.items():
        connection.exec_driver_sql(f"CREATE TEMPORARY VIEW {PROBE} AS {query}")
        texts[name] = connection.execute(text(DEFINITION), {"name": PROBE}).scalar_one()
        connection.exec_driver_sql(f"DROP VIEW {PROBE}")
    connection.rollback()
    return texts
