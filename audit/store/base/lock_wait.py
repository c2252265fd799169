"""Waits for an SQLite store that another process holds: says once who holds it, and goes on when it is free.

The note goes to the log named `audit.store`, which the command line shows on stderr.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.exc import DBAPIError

T = TypeVar("T")

QUIET_S: Final = 1.0
"""Seconds of waiting without a note: transactions of other writers are shorter."""
PAUSE_S: Final = 0.05
"""Seconds between two attempts."""


def until_free(path: Path, attempt: Callable[[], T], limit_s: float) -> T:
    """The result of an attempt, repeated while another process holds the store.

    Raises:
        sqlite3.OperationalError, DBAPIError: any other failure, or the store is still held after the limit.
    """
    began, noted = time.monotonic(), False
    while True:
        try:
            return attempt()
        except (sqlite3.OperationalError, DBAPIError) as error:
            waited = time.monotonic() - began
            if not is_busy(error) or waited > limit_s:
                raise
        if waited > QUIET_S and not noted:
            noted = True
            note = "%s is held by %s; waiting up to %.0f s"
            logging.getLogger("audit.store").warning(note, path, holder(path), limit_s)
        time.sleep(min(PAUSE_S, limit_s))


def is_busy(error: BaseException | None) -> bool:
    """True if SQLite failed because another connection holds a lock."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def holder(path: Path) -> str:
    """The process that holds a lock for writing on the store, as far as the system tells."""
    others = sorted(set(_writers(path)) - {os.getpid()})
    return f"process {others[0]}" if others else "another process"


def _writers(path: Path) -> Iterator[int]:
    """Processes with a lock for writing on the file, or on the shared memory of its log; Linux lists them."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    places = set(_places(path))
    for line in lines:
        # NUMBER: KIND ADVISORY READ|WRITE PID MAJOR:MINOR:INODE START END
        fields = line.split()
        if len(fields) >= 8 and fields[3] == "WRITE" and fields[5] in places and fields[4].isdecimal():
            yield int(fields[4])


def _places(path: Path) -> Iterator[str]:
    for name in (path.name, f"{path.name}-shm"):
        try:
            status = path.with_name(name).stat()
        except OSError:
            continue
        yield f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
