"""Turns database errors into one line: cause and fix.

A failure takes back the transaction that it meets and no other. The exception is a commit over a lost connection, which
may have reached the server; the store then shows whether it did.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError

from audit.errors import CannotDecide


@dataclass(frozen=True, slots=True)
class Cause:
    """A failure in words: what happened, and what the user can do. Both are parts of a sentence."""

    what: str
    fix: str


class StoreFailure(CannotDecide):
    """The database failed. `place` is the store's URL; committed transactions are safe."""

    def __init__(self, place: str, cause: Cause) -> None:
        super().__init__(f"{place}: {cause.what}; {cause.fix}")
        self.place = place
        self.cause = cause


WRITABLE: Final = "give this user write access to the file and its folder"
CHECK_FILE: Final = "check the disk and the file (audit db check)"
RECONNECT: Final = "wait until the server accepts connections"

SQLITE: Final[Mapping[int, Cause]] = {
    sqlite3.SQLITE_FULL: Cause("the disk is full", "make room"),
    sqlite3.SQLITE_BUSY: Cause("another process is writing to the store and does not end", "wait for that process"),
    sqlite3.SQLITE_LOCKED: Cause("another process is writing to the store and does not end", "wait for that process"),
    sqlite3.SQLITE_READONLY: Cause("the store is read-only", WRITABLE),
    sqlite3.SQLITE_PERM: Cause("no permission to use the store", WRITABLE),
    sqlite3.SQLITE_CANTOPEN: Cause("the store cannot be opened", "restore the file, and " + WRITABLE),
    sqlite3.SQLITE_IOERR: Cause("the disk refused to read or write", "make room, and " + CHECK_FILE),
    sqlite3.SQLITE_CORRUPT: Cause("the file is damaged", "restore a copy of the store"),
    sqlite3.SQLITE_NOTADB: Cause("the file is no database any more", "restore a copy of the store"),
    sqlite3.SQLITE_NOMEM: Cause("the memory does not suffice", "end other programs"),
}
"""By primary result code."""

POSTGRESQL: Final[Mapping[str, Cause]] = {
    "53100": Cause("the server's disk is full", "make room on the server"),
    "53200": Cause("the server's memory does not suffice", "free memory on the server"),
    "53300": Cause("the server has no free connection", "end other clients"),
    "25006": Cause("the store is read-only", "name a server that accepts writes"),
    "42501": Cause("no permission to write to the store", "grant this user INSERT and SELECT"),
    "55P03": Cause("another session holds a lock on the store", "wait for that session"),
    "40P01": Cause("another session holds a lock on the store", "wait for that session"),
    "08": Cause("the connection to the server was lost", RECONNECT),
    "57P": Cause("the server ended the connection", RECONNECT),
    "58": Cause("the server cannot read or write its files", "check the server's disk"),
    "XX": Cause("the server found damaged data", "restore a copy of the store"),
}
"""By the beginning of the SQLSTATE."""

UNKNOWN: Final = Cause("the database failed", "remove the cause")
REPLACED: Final = Cause("the file was replaced or removed while it was in use", "put the former file back")


def failure(place: str, error: DBAPIError) -> StoreFailure:
    """The failure behind a driver's error, with the driver's first line."""
    cause = _cause(error)
    reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
    return StoreFailure(place, Cause(f"{cause.what} ({reason})", cause.fix))


def _cause(error: DBAPIError) -> Cause:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return REPLACED if code == sqlite3.SQLITE_READONLY_DBMOVED else SQLITE.get(code & 0xFF, UNKNOWN)
    state = getattr(error.orig, "sqlstate", None) or ""
    result = next((cause for prefix, cause in POSTGRESQL.items() if state.startswith(prefix)), None)
    # a server that is gone gives no state
    lost = error.connection_invalidated or (not state and hasattr(error.orig, "sqlstate"))
    return result or (POSTGRESQL["08"] if lost else UNKNOWN)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and number of the file at a path, which a replacement does not share; None if there is none.

    SQLite writes on into a file that was removed or replaced, and everything written is lost when the process ends.
    """
    try:
        result = path.stat()
    except OSError:
        return None
    return result.st_dev, result.st_ino
