"""One process at a time executes a run: a lock that ends with the process, however it ends.

SQLite: a lock of the operating system on a small file beside the store. PostgreSQL: an advisory lock of a session. The
lock keeps a second process from doing the same work; the unique key of requests keeps it from storing it twice.

Threads of one process share a file's lock, and systems without POSIX locks (Windows) have none.
"""

import contextlib
import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.base.connection import is_sqlite, sqlite_path
from audit.store.base.lock_wait import PAUSE_S, QUIET_S

OWNER = """
SELECT a.pid, a.client_addr FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND ((l.classid::bigint << 32) | l.objid::bigint) = :key
"""


def held(engine: Engine, run: str) -> AbstractContextManager[None]:
    """Hold the lock of a run. Raises UserError: another process holds it, or the lock's file cannot be made."""
    if is_sqlite(engine.url):
        path = sqlite_path(engine.url)
        return _file_held(path.with_name(f"{path.name}-run-{run}"), run)
    return _session_held(engine, run)


@contextmanager
def _file_held(path: Path, run: str) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    file = _opened(path)
    try:
        # the owner of the former lock may have removed the file that this process opened
        while not _locked(fcntl, file, path, run):
            os.close(file)
            file = _opened(path)
        # the name of the owner is for messages only: a full disk keeps it out, and the lock holds without it
        with contextlib.suppress(OSError):
            os.truncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path}: the run's lock cannot be made ({reason}); make room, or allow writing") from error


def _locked(fcntl: ModuleType, file: int, path: Path, run: str) -> bool:
    """Lock the file; False if it is no longer the one at the path."""
    try:
        # unlike flock, this lock is not inherited by children, which may outlive the run
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(file, 200, 0).decode("utf-8", "replace") or "another process"
        raise _refused(run, owner) from error
    with contextlib.suppress(OSError):
        return path.stat().st_ino == os.fstat(file).st_ino
    return False


def _refused(run: str, owner: str) -> UserError:
    return UserError(f"run {run} is being executed by {owner}; wait for its end, or stop it first")


@contextmanager
def _session_held(engine: Engine, run: str) -> Iterator[None]:
    with engine.connect() as opened:
        session = opened.execution_options(isolation_level="AUTOCOMMIT")
        values = {"key": lock_key(run)}
        if not session.execute(text("SELECT pg_try_advisory_lock(:key)"), values).scalar_one():
            raise _refused(run, _owner(session, values["key"]))
        try:
            yield
        finally:
            # with the session ends its lock
            with contextlib.suppress(DBAPIError):
                session.execute(text("SELECT pg_advisory_unlock(:key)"), values)


def _owner(session: Connection | Session, key: int) -> str:
    owner = session.execute(text(OWNER), {"key": key}).first()
    if owner is None:
        return "another process"
    return f"the database session {owner.pid}" + ("" if owner.client_addr is None else f" from {owner.client_addr}")


def lock_appending(session: Session, key: int) -> None:
    """Take PostgreSQL's lock of those who append; says once who holds it if that takes a while.

    Raises:
        DBAPIError: the lock was not free within the time of the connection.
    """
    attempt, deadline = text("SELECT pg_try_advisory_xact_lock(:key)"), time.monotonic() + QUIET_S
    while not session.execute(attempt, {"key": key}).scalar_one():
        if time.monotonic() > deadline:
            logging.getLogger("audit.store").warning("the store is held by %s; waiting", _owner(session, key))
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
            return
        time.sleep(PAUSE_S)


def lock_key(run: str) -> int:
    """The number of a run's advisory lock: 63 bits, because PostgreSQL's view splits the number at its sign."""
    return int.from_bytes(hashlib.sha256(b"specaudit run " + run.encode()).digest()[:8], "big") >> 1
