"""Runs one SELECT on an SQLite store in a process of its own, which the caller ends when the time is over.

SQLite looks at a clock only between two of its instructions, and one of them can compare strings for hours. The file is
run as a script in an isolated interpreter, so it imports the standard library alone and starts in milliseconds.
"""

import base64
import contextlib
import json
import resource
import sqlite3
import sys
import time
from typing import Any, Final

ALLOWED: Final = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
"""SQLite actions allowed to a caller's query: no ATTACH, no PRAGMA, no writes."""
TABLE_FUNCTIONS: Final = ("json_each", "json_tree")
"""Table-valued functions of SQLite that a caller may use."""
PROGRESS_STEPS: Final = 10_000
"""Virtual machine instructions between two readings of the clock, well under a millisecond."""
MEMORY: Final = 2**30
"""Bytes of address space."""
MOST: Final = 2**26
"""Bytes of a result."""
BYTES: Final = "base64"


class _TooLarge(Exception):
    pass


def main() -> None:
    """Read a job from stdin, and write its rows or its error to stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        answer = _rows(json.load(sys.stdin))
    except MemoryError:
        answer = {"error": "memory"}
    except _TooLarge:
        answer = {"error": "size"}
    except (sqlite3.Error, sqlite3.Warning) as error:
        answer = {"error": "sql", "reason": str(error)}
    json.dump(answer, sys.stdout)


def _rows(job: dict[str, Any]) -> dict[str, Any]:
    with contextlib.closing(_connected(job)) as connection:
        cursor = connection.execute(job["sql"], [restored(item) for item in job["values"]])
        if cursor.description is None:
            return {"error": "no rows"}
        rows, size = [], 0
        for row in cursor:
            size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            if size > MOST:
                raise _TooLarge
            rows.append([_written(cell) for cell in row])
            if len(rows) == job["rows"]:
                break
        return {"columns": [item[0] for item in cursor.description], "rows": rows}


def _connected(job: dict[str, Any]) -> sqlite3.Connection:
    """A connection that can only read, and looks at the clock where it can."""
    connection = sqlite3.connect(job["uri"], uri=True, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {job['busy_ms']}")
    connection.execute("PRAGMA query_only = ON")
    for function in TABLE_FUNCTIONS:  # the first use declares a table, which the authorizer would later refuse
        connection.execute(f"SELECT 1 FROM {function}('[]')")
    deadline = time.monotonic() + job["seconds"]
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), PROGRESS_STEPS)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    return connection


def _written(cell: Any) -> Any:
    return {BYTES: base64.b64encode(cell).decode()} if isinstance(cell, bytes) else cell


def restored(cell: Any) -> Any:
    """A value from its form in JSON."""
    return base64.b64decode(cell[BYTES]) if isinstance(cell, dict) else cell


if __name__ == "__main__":
    main()
