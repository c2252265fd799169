"""Failures of the database in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from audit.errors import CannotDecide
from audit.store import NewRequest, Store
from audit.store.base.failures import POSTGRESQL, SQLITE, StoreFailure, failure
from tests.audit.store.build import fill, generation


def fails(store: Store, run: str, match: str) -> None:
    """A write fails in one line, and the store holds what it held."""
    before = store.finished(run)
    with pytest.raises(StoreFailure, match=match) as caught:
        store.add_requests(run, [NewRequest("spec", "chat", "new", 0, generation(((4, 2),) * 200, seed=5))])
    assert "\n" not in str(caught.value)
    assert store.finished(run) == before


def works(store: Store, run: str) -> None:
    store.add_requests(run, [NewRequest("spec", "chat", "new", 0, generation(((4, 2),) * 200, seed=5))])


def pragma(store: Store, statement: str) -> int:
    with store._engine.connect() as connection:
        return int(connection.exec_driver_sql(f"PRAGMA {statement}").scalar_one())


@pytest.mark.medium
def test_a_full_disk(store):
    run = fill(store)
    pragma(store, f"max_page_count = {pragma(store, 'page_count')}")
    fails(store, run, r"audit\.db: the disk is full \(database or disk is full\); make room$")
    pragma(store, "max_page_count = 1000000")
    works(store, run)


@pytest.mark.medium
def test_a_read_only_store(store):
    run = fill(store)
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    fails(store, run, r"the store is read-only \(.*readonly.*\); give this user write access")


@pytest.mark.medium
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.rename(path.with_name("moved.db"))])
def test_a_file_that_was_removed(store: Store, tmp_path: Path, change: Callable[[Path], object]):
    """SQLite itself would go on writing to the removed file."""
    run = fill(store)
    change(tmp_path / "audit.db")
    fails(store, run, "the file was replaced or removed while it was in use; put the former file back")


def test_a_file_that_was_replaced(store, tmp_path):
    run, copy = fill(store), tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "audit.db").read_bytes())
    copy.replace(tmp_path / "audit.db")
    fails(store, run, "the file was replaced or removed")


def test_a_server_that_ends_the_connection(postgres):
    from audit.store import migrate

    migrate.upgrade(postgres)
    with Store.open(postgres, create=False) as store, Store.open(postgres, create=False) as other:
        run = fill(store)
        with other._engine.connect() as connection:
            ended = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            connection.execute(ended)
        with pytest.raises(StoreFailure, match=r"connection.*\(.*\); wait until the server accepts connections$"):
            works(store, run)
        works(store, run)


def test_a_server_that_is_gone_hides_the_password(tmp_path):
    url = f"postgresql://u:secret@/d?host={tmp_path}"
    with pytest.raises(Exception, match="cannot be read as a store") as caught:
        Store.open(url, create=False)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_read_only_server(postgres):
    from audit.store import migrate

    migrate.upgrade(postgres)
    with Store.open(postgres, create=False) as store:
        run = fill(store)
        with store._engine.connect() as connection:
            connection.execute(text("SET default_transaction_read_only = on"))
            connection.commit()
        fails(store, run, "the store is read-only .*; name a server that accepts writes")


def sentence(**facts: object) -> str:
    kind = type("Driver", (Exception,), facts)
    return str(failure("audit.db", OperationalError("INSERT", {}, kind("reason\nmore"))))


@pytest.mark.parametrize("code", [*SQLITE, 13 | 7 << 8])
def test_every_known_code_of_sqlite_has_a_line(code):
    cause = SQLITE[code & 0xFF]
    assert sentence(sqlite_errorcode=code) == f"audit.db: {cause.what} (reason); {cause.fix}"


def test_a_moved_file_is_not_called_read_only():
    assert "replaced or removed" in sentence(sqlite_errorcode=sqlite3.SQLITE_READONLY_DBMOVED)


@pytest.mark.parametrize("state", [state.ljust(5, "0") for state in POSTGRESQL])
def test_every_known_state_of_postgresql_has_a_line(state):
    assert "the database failed" not in sentence(sqlstate=state)


def test_a_connection_without_a_state_is_lost_and_other_errors_keep_their_words():
    assert "connection to the server was lost (reason)" in sentence(sqlstate=None)
    assert sentence(sqlstate="22001") == "audit.db: the database failed (reason); remove the cause"
    assert sentence() == "audit.db: the database failed (reason); remove the cause"


def test_a_failure_decides_nothing():
    assert issubclass(StoreFailure, CannotDecide)
