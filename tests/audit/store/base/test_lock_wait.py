"""A store that another process holds: one note that names it, and the command goes on when it is free."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from audit.errors import CannotDecide, UserError
from audit.store import Store
from audit.store.base import connection, lock_wait, run_lock
from audit.store.ledger import log
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, made_store, start
from tests.support.processes import until_killed

EXCLUSIVE = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE")


@contextmanager
def held(path, statements, seconds=60.0):
    """Another process holds the store for some seconds; gives its number."""

    def hold(ready):
        held = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            held.execute(statement)
        ready()
        time.sleep(seconds)

    with until_killed(hold) as number:
        yield number


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lock_wait, "QUIET_S", 0.1)


@pytest.mark.medium
@pytest.mark.parametrize("statements", [("BEGIN IMMEDIATE",), EXCLUSIVE], ids=["writer", "exclusive"])
def test_a_writer_names_the_holder_and_goes_on(tmp_path, quick, caplog, statements):
    url, path = made_store(tmp_path), tmp_path / "audit.db"
    with held(path, statements, 0.6) as number, Store.open(url, create=False) as store:
        store.begin_run(start())
    assert caplog.messages == [f"{path} is held by process {number}; waiting up to 120 s"]


@pytest.mark.medium
def test_every_command_waits_for_a_store_that_is_held_alone(tmp_path, quick):
    url, path = made_store(tmp_path), tmp_path / "audit.db"
    with held(path, EXCLUSIVE, 0.6) as number:
        listed = invoke("list", "--store", url)
    assert listed.exit_code == 0
    assert listed.stderr == f"audit: {path} is held by process {number}; waiting up to 120 s\n"


@pytest.mark.medium
def test_a_store_that_is_never_free_decides_nothing_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "BUSY_MS", 100)
    url, path = made_store(tmp_path), tmp_path / "audit.db"
    with held(path, EXCLUSIVE):
        refused = [invoke("list", "--store", url), invoke("db", "upgrade", "--store", url)]
    for result in refused:
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith(f"audit: sqlite:///{path}: another process is writing to the store")
        assert result.stderr.count("\n") == 1


def test_postgresql_names_the_session_that_holds_the_log(any_url, quick, monkeypatch, caplog):
    monkeypatch.setattr(run_lock, "QUIET_S", 0.1)
    if "sqlite" in any_url:
        pytest.skip("above")
    with Store.open(any_url, create=False) as store, connected(any_url) as other:
        number = other.execute(text("SELECT pg_backend_pid()")).scalar_one()
        other.execute(text(f"SELECT pg_advisory_xact_lock({log.LOCK})"))
        timer = threading.Timer(0.5, other.rollback)
        timer.start()
        store.begin_run(start())
        timer.join()
    assert caplog.messages == [f"the store is held by the database session {number}; waiting"]


def test_postgresql_ends_the_wait_in_one_line(any_url, monkeypatch):
    if "sqlite" in any_url:
        pytest.skip("above")
    monkeypatch.setattr(connection, "BUSY_MS", 200)
    with Store.open(any_url, create=False) as store, connected(any_url) as other:
        other.execute(text("LOCK TABLE run IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(CannotDecide, match="another session holds a lock on the store"):
            store.begin_run(start())
        other.rollback()


@pytest.mark.parametrize("kind", ["pipe", "device", "long", "NUL", "bytes"])
def test_what_is_no_file_is_no_store(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place = "/dev/null"
    else:
        place = tmp_path / {"long": "a" * 300, "NUL": "a\0b", "bytes": "\udcff"}[kind]
    for create in (True, False):
        with pytest.raises(UserError) as caught:
            Store.open(str(place), create=create)
        assert "\n" not in str(caught.value)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
