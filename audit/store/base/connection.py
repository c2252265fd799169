"""Opening databases: URLs, connection settings, read-only access.

SQLite by path or URL, or any SQLAlchemy URL (PostgreSQL through psycopg). Writers take SQLite's write lock when they
begin, because upgrading a read transaction fails at once if another writer was faster.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from audit.errors import UserError
from audit.store.base.lock_wait import until_free

BUSY_MS: Final = 120_000
"""Milliseconds that a connection waits for another's lock."""
STEP_MS: Final = 200
"""Milliseconds that SQLite itself waits, between two attempts of ours."""
READING: Final = "specaudit_reading"
"""Execution option of a transaction that takes no write lock."""


def default_url() -> str:
    """`AUDIT_STORE`, else an SQLite file in the user's data folder."""
    named = os.environ.get("AUDIT_STORE")
    if named:
        return named
    return f"sqlite:///{data_folder() / 'audit.db'}"


def data_folder() -> Path:
    """Folder for the tool's user data; this function does not create it."""
    return Path(os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")) / "specaudit"


def parse_url(text: str) -> URL:
    """A store's URL; a text without a scheme is the path of an SQLite file.

    Raises:
        UserError: not a URL, or an SQLite store in memory.
    """
    if "\0" in text:
        raise UserError(f"{text}: a store's name has no NUL; name a file, or a URL")
    if any("\ud800" <= character <= "\udfff" for character in text):  # bytes of an argument that are no text
        raise UserError(f"{text}: not UTF-8, which the name of a store is; name another file, or a URL")
    if "://" not in text:
        if not text.strip():
            raise UserError("--store is empty; give a path or a URL such as sqlite:///audit.db")
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise UserError(f"{text}: not a store URL; write sqlite:///FILE or postgresql://HOST/DATABASE") from error
    if url.get_backend_name() in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise UserError(f"{text}: a store in memory would be lost; name a file: sqlite:///audit.db")
    return url


def shown(url: URL) -> str:
    """The URL for messages, with the password hidden."""
    return url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """True if the store is an SQLite file."""
    return url.get_backend_name() == "sqlite"


def sqlite_path(url: URL) -> Path:
    """The file of an SQLite store."""
    return Path(str(url.database))


def open_engine(url: URL, *, foreign_keys: bool = True) -> Engine:
    """A database engine with write access. Migrations that rebuild tables turn foreign keys off.

    Raises:
        UserError: unknown kind of database, or its driver is not installed.
    """
    if not is_sqlite(url):
        return _create(url, connect_args={"options": f"-c lock_timeout={BUSY_MS}"})
    engine = _create(url)
    path = sqlite_path(url)

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # Without autocommit the driver itself begins transactions, and too late.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {min(STEP_MS, BUSY_MS)}")
        # SQLite itself does not wait here, so a second process that opens a store while the first creates it must retry
        _until_free(path, lambda: connection.execute("PRAGMA journal_mode = WAL"))
        for pragma in _pragmas(foreign_keys):
            connection.execute(pragma)

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", lambda connection: _begin(connection, path))
    return engine


def _until_free(path: Path, attempt: Callable[[], object]) -> None:
    until_free(path, attempt, BUSY_MS / 1000)


def _pragmas(foreign_keys: bool) -> tuple[str, ...]:
    return (
        # with NORMAL a power cut could take back what a command has reported as stored
        "PRAGMA synchronous = FULL",
        f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        # Without this setting INSERT OR REPLACE deletes the old row without firing its triggers.
        "PRAGMA recursive_triggers = ON",
    )


def _begin(connection: Connection, path: Path) -> None:
    reading = connection.get_execution_options().get(READING, False)
    # a transaction for reading takes its lock with the first read
    statements = ("BEGIN", "SELECT 1 FROM sqlite_master LIMIT 1") if reading else ("BEGIN IMMEDIATE",)

    def begin() -> None:
        # SQLAlchemy rolls back after a failure, so each attempt begins anew
        for statement in statements:
            connection.exec_driver_sql(statement).close()

    _until_free(path, begin)


def open_readonly(url: URL) -> Engine:
    """A database engine whose connections cannot write.

    Raises:
        UserError: unknown kind of database, or its driver is not installed.
    """
    if not is_sqlite(url):
        # A prepared statement is a single one, so no query can end the transaction and write in another.
        arguments = {"options": "-c default_transaction_read_only=on", "prepare_threshold": 0}
        return _create(url, connect_args=arguments)
    path = sqlite_path(url)
    engine = _create(url, creator=lambda: _connect_readonly(path))
    event.listen(engine, "begin", lambda connection: _begin(connection, path))
    return engine.execution_options(**{READING: True})


def _connect_readonly(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(readonly_uri(path), uri=True, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA busy_timeout = {min(STEP_MS, BUSY_MS)}")
    connection.execute("PRAGMA query_only = ON")
    return connection


def readonly_uri(path: Path) -> str:
    """The `file:` URI that opens a store without writing.

    A reader of a WAL database needs its shared-memory file. If the folder is not
    writable and no log is pending, the URI declares the file immutable.
    """
    frozen = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if frozen else ''}"


def _create(url: URL, **options: Any) -> Engine:
    try:
        return create_engine(url, **options)
    except NoSuchModuleError as error:
        raise UserError(f"{shown(url)}: no such kind of database; use sqlite or postgresql") from error
    except ModuleNotFoundError as error:
        extra = "specaudit[postgres]" if url.get_backend_name() == "postgresql" else str(error.name)
        raise UserError(f"{shown(url)}: the database driver is missing; install {extra}") from error
