"""A store's views: compared with those of this version, and made anew.

The migrations are the only place that states the views, so they run without a database and their SQL is read. SQLite
keeps a view's text; PostgreSQL rewrites it, so there the expected text is rewritten too. A view holds no evidence: an
upgrade makes all of them anew.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from audit.store.base.values import IntegrityViolation
from audit.store.tables.runs import REVISION

VIEW_CHANGE: Final = re.compile(r"(CREATE|DROP)(?: OR REPLACE)? VIEW (\w+)(?: AS(.*))?", re.DOTALL)
PROBE: Final = "audit_expected_view"
DEFINITION: Final = "SELECT pg_get_viewdef(CAST(:name AS regclass))"
VIEWS: Final = """
SELECT relname, pg_get_viewdef(pg_class.oid) AS definition FROM pg_class
WHERE relkind = 'v' AND relnamespace = CAST(current_schema() AS regnamespace)
"""


def damaged_views(engine: Engine) -> Iterator[IntegrityViolation]:
    """The store's own views that are missing or altered; a user may add others."""
    queries = expected_views(engine.dialect.name)
    with engine.connect() as connection:
        try:
            expected, stored = rewritten(connection, queries), stored_views(connection)
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0]
            yield IntegrityViolation("views", f"cannot be compared with those of this version: {reason}")
            return
    for name in expected:
        if name not in stored:
            yield IntegrityViolation(name, "the view is missing")
        elif expected[name] != stored[name]:
            yield IntegrityViolation(name, "the view was altered")


def renew_views(connection: Connection) -> None:
    """Make the store's own views anew in one transaction; those of users stay."""
    dialect = connection.dialect.name
    for name, query in expected_views(dialect).items():
        if dialect == "sqlite":
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")
        else:  # a view that another one reads cannot be dropped
            connection.exec_driver_sql(f"CREATE OR REPLACE VIEW {name} AS {query}")
    connection.commit()


def expected_views(dialect: str) -> Mapping[str, str]:
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
        if (matched := VIEW_CHANGE.match(statement.strip())) is None:
            continue
        action, name, query = matched.groups()
        views.pop(name, None)
        if action == "CREATE":
            views[name] = query.strip()
    return views


def stored_views(connection: Connection) -> Mapping[str, str]:
    """The query of each view that the database holds, by name."""
    if connection.dialect.name == "postgresql":
        return {row.relname: row.definition for row in connection.execute(text(VIEWS))}
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    return {row.name: matched.group(3).strip() if (matched := VIEW_CHANGE.match(row.sql)) else row.sql for row in rows}


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
