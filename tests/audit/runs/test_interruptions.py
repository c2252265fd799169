"""Runs that end early: one line with the reason and the command that continues, and a run that does continue."""

from __future__ import annotations

import signal
import time

import pytest
from sqlalchemy import text

from audit.api.running import Quiet
from audit.errors import UserError
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store, migrate
from audit.store.base.failures import StoreFailure
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.observers import StopsAfter
from tests.support.processes import until_killed

__all__ = ["any_url", "cluster", "postgres"]


class BreaksAfter(Quiet):
    """Something breaks the store after a number of stored requests."""

    def __init__(self, requests, broken):
        self.left, self.broken = requests, broken

    def advance(self, tokens):
        self.left -= 1
        if self.left == 0:
            self.broken()


@pytest.fixture
def suite(tmp_path):
    return load_suite(suite_file(tmp_path))


def pragma(store, statement):
    with store._engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {statement}").scalar_one()


@pytest.mark.medium
def test_a_full_disk_keeps_the_finished_requests(suite, tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:

        def fill_the_disk():
            pragma(store, f"max_page_count = {pragma(store, 'page_count')}")

        with pytest.raises(StoreFailure) as caught:
            run(prepare(suite), store, BreaksAfter(7, fill_the_disk))
        name = store.resolve("latest")
        done = store.finished(name)
        message = str(caught.value)
        assert "\n" not in message
        assert "the disk is full (database or disk is full)" in message
        assert f"; {len(done)} finished requests are safe; make room, then: audit resume {name} --store " in message
    assert len(done) >= 7
    with Store.open(url, create=False) as store:
        resume(prepare(suite), store, name, Quiet())
        assert store.damage() == ()
        assert store.run_status(name) is RunStatus.FINISHED


def test_a_lost_connection_keeps_the_finished_requests(suite, postgres):
    migrate.upgrade(postgres)
    with Store.open(postgres, create=False) as store, Store.open(postgres, create=False) as other:

        def end_the_sessions():
            with other._engine.connect() as connection:
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                connection.execute(text(ended))

        with pytest.raises(StoreFailure, match=r"connection.*; 7 finished requests are safe; wait until the server"):
            run(prepare(suite), store, BreaksAfter(7, end_the_sessions))
        name = store.resolve("latest")
        assert store.run_status(name) is RunStatus.INTERRUPTED
        resume(prepare(suite), store, name, Quiet())
        assert store.damage() == ()


@pytest.mark.medium
def test_a_removed_file_stops_the_run_at_once_and_the_former_file_can_be_resumed(suite, tmp_path):
    path, moved = tmp_path / "audit.db", tmp_path / "moved"
    moved.mkdir()

    def move():
        for part in tmp_path.glob("audit.db*"):
            part.rename(moved / part.name)

    with Store.open(str(path), create=True) as store, pytest.raises(StoreFailure, match="replaced or removed"):
        run(prepare(suite), store, BreaksAfter(3, move))
    assert not path.exists()
    with Store.open(str(moved / "audit.db"), create=False) as store:
        name = store.resolve("latest")
        assert len(store.finished(name)) == 3
        resume(prepare(suite), store, name, Quiet())
        assert store.run_status(name) is RunStatus.FINISHED


def execute(suite, url, name, ready):
    class Slow(Quiet):
        def advance(self, tokens):
            ready()
            time.sleep(60)

    with Store.open(url, create=False) as store:
        resume(prepare(suite), store, name, Slow())


@pytest.mark.medium
def test_a_run_is_resumed_by_one_process_at_a_time(suite, any_url):
    with Store.open(any_url, create=False) as store:
        with pytest.raises(Interrupted, match=r"; continue with: audit resume \w+ --store ") as stopped:
            run(prepare(suite), store, StopsAfter(2))
        name = stopped.value.run
        with until_killed(lambda ready: execute(suite, any_url, name, ready)):
            events = len(store.load_run(name).events)
            with pytest.raises(UserError, match=f"run {name} is being executed by "):
                resume(prepare(suite), store, name, Quiet())
            assert len(store.load_run(name).events) == events
        resume(prepare(suite), store, name, Quiet())
        assert store.run_status(name) is RunStatus.FINISHED


def test_a_stop_outside_of_a_run_is_one_line_and_decides_nothing(monkeypatch):
    def stop(*_arguments, **_options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("audit.store.Store.open", stop)
    # a shell starts the processes in its background with this signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = invoke("list", "--store", "audit.db")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 3
    assert done.stderr == "audit: interrupted\n"
