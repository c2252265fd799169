"""Read a store's revision and upgrade it to the one that the code needs; compare its views with those of this version.

The module works from the installed package: it finds the scripts by the package name `migrations`, never by a folder.
The migrations are the only place that states the views, so they run without a database and their SQL is read. SQLite
keeps a view's text; PostgreSQL rewrites it, so there the expected text is rewritten too. A view holds no evidence: an
upgrade makes all of them anew.
"""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError, DBAPIError

from audit.errors import UserError
from audit.store.base.connection import is_sqlite, open_engine, open_readonly, parse_url, shown, sqlite_path
from audit.store.base.failures import failure
from audit.store.base.lock_wait import is_busy
from audit.store.base.values import IntegrityViolation
from audit.store.tables.runs import REVISION

if TYPE_CHECKING:
    from alembic.config import Config

EMPTY: Final = "empty"
"""Revision of a database without any table."""
BASE: Final = "base"
"""Revision of a store after all migrations were reverted."""
FOREIGN: Final = "foreign"
"""Revision of a database with foreign tables."""
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
    # imported here because only this check needs it
    from alembic import command

    made = config()
    made.output_buffer = written = io.StringIO()
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


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, for a connection that the caller keeps open."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", "migrations:")
    made.attributes["connection"] = connection
    return made


def upgrade(url: str) -> None:
    """Upgrade a store to the code's revision and views; creates the SQLite file and its folder if needed.

    Raises:
        UserError: unreadable, not a store, or newer than the code.
        StoreFailure: another process holds the store and does not end.
    """
    from alembic import command

    target = parse_url(url)
    if is_sqlite(target):
        _make_place(target)
    engine = open_engine(target, foreign_keys=False)
    try:
        with engine.connect() as connection:
            before = _revision(connection)
            _refuse_unknown(before, target)
            connection.rollback()
            command.upgrade(config(connection), "head")
            connection.commit()
            if before not in {EMPTY, BASE}:
                renew_views(connection)
    except DatabaseError as error:
        if is_busy(error):
            raise failure(shown(target), error) from error
        raise UserError(f"{shown(target)}: cannot be upgraded: {error.orig}") from error
    finally:
        engine.dispose()


def _make_place(target: URL) -> None:
    """Make an SQLite file and its folder, and refuse what is no file: SQLite would wait for a pipe's writer."""
    path = sqlite_path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # a record holds prompts and answers, which are the owner's; SQLite gives its logs the same mode
            path.touch(0o600)
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown(target)}: cannot be made ({reason}); choose another place") from error
    if not stat.S_ISREG(kind):
        raise UserError(f"{shown(target)}: cannot be a store, because it is no file; choose another place")


def current(url: str) -> str:
    """A store's revision, or `EMPTY`, `BASE` or `FOREIGN`.

    Raises:
        UserError: the database is missing or cannot be read.
    """
    target = parse_url(url)
    if is_sqlite(target) and not is_file(target):
        raise UserError(f"{shown(target)}: no such store; run: audit db upgrade --store {shown(target)}")
    engine = open_readonly(target)
    try:
        return revision_of(engine, target)
    finally:
        engine.dispose()


def is_file(target: URL) -> bool:
    """True if an SQLite store's path is a file. Raises UserError: no path can be like that."""
    try:
        return sqlite_path(target).is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown(target)}: not a path of a file ({reason}); name another store") from error


def revision_of(engine: Engine, url: URL) -> str:
    """The revision of a database engine, or `EMPTY`, `BASE` or `FOREIGN`.

    Raises:
        UserError: the database cannot be read.
        StoreFailure: another process holds it and does not end.
    """
    try:
        with engine.connect() as connection:
            return _revision(connection)
    except DatabaseError as error:
        if is_busy(error):
            raise failure(shown(url), error) from error
        reason = str(error.orig).strip().splitlines()[0]
        raise UserError(f"{shown(url)}: cannot be read as a store: {reason}") from error


def _revision(connection: Connection) -> str:
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return EMPTY
    if "alembic_version" not in tables or not ("run" in tables or tables == {"alembic_version"}):
        return FOREIGN
    revisions = [str(row[0]) for row in connection.execute(text("SELECT version_num FROM alembic_version"))]
    if revisions and "log_entry" not in tables:
        return f"{revisions[0]} without a log"
    return " and ".join(revisions) or BASE


def opened(engine: Engine, url: URL) -> Engine:
    """The engine, if its store has the code's revision; disposed of otherwise.

    Raises:
        UserError: it cannot be read, is no store, or has another revision.
    """
    try:
        require_current(revision_of(engine, url), url)
    except BaseException:
        engine.dispose()
        raise
    return engine


def require_current(revision: str, url: URL) -> None:
    """Require that the store has the code's revision.

    Raises:
        UserError: it does not; the message names its state and the fix.
    """
    _refuse_unknown(revision, url)
    if revision != REVISION:
        raise UserError(
            f"{shown(url)}: the store is at revision {revision}, this version of audit needs {REVISION}; "
            f"run: audit db upgrade --store {shown(url)}"
        )


def _refuse_unknown(revision: str, url: URL) -> None:
    if revision == FOREIGN:
        raise UserError(f"{shown(url)}: a database, but not an audit store; name another file or database")
    if revision not in {EMPTY, BASE, REVISION}:
        raise UserError(
            f"{shown(url)}: the store has revision {revision}, and this version of audit reads {REVISION}: it is older "
            "than 0.1.0 or newer than this version; name a new store and run again, or install a newer specaudit"
        )


def make_ready(url: str, target: URL, create: bool) -> None:
    """Create a missing or empty SQLite store if `create` is set, else raise that it is missing."""
    missing = is_sqlite(target) and not is_file(target)
    if missing and not create:
        raise UserError(f"{shown(target)}: no such store; run a suite first, or: audit db upgrade --store {url}")
    if is_sqlite(target) and create and (missing or current(url) == EMPTY):
        upgrade(url)
