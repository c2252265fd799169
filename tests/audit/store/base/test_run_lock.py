"""One process per run, several runs per store; on SQLite and PostgreSQL, with real processes."""

from __future__ import annotations

import contextlib
import time

import pytest
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store import NewRequest, RunStatus, Store
from audit.store.base.run_lock import lock_key
from audit.store.writing import request_writer
from tests.audit.store.build import fill, generation, start
from tests.support.processes import ended, forked, kill, until_killed

WRITERS, REQUESTS = 4, 12


def hold(url, run, ready):
    with Store.open(url, create=False) as store, store.hold(run):
        ready()
        time.sleep(60)


@pytest.mark.medium
def test_a_run_in_execution_is_refused_until_its_process_is_killed(any_url):
    with Store.open(any_url, create=False) as store:
        run, other = fill(store), fill(store)
        with until_killed(lambda ready: hold(any_url, run, ready)) as owner:
            refused = rf"run {run} is being executed by .*\d.*; wait for its end"
            with pytest.raises(UserError, match=refused) as caught, store.hold(run):
                pass
            assert "\n" not in str(caught.value)
            with store.hold(other):
                pass
            kill(owner)
            assert held_within(store, run, seconds=60)


def held_within(store, run, seconds):
    """True if the run can be held in time: PostgreSQL notices only after a while that a client was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(UserError), store.hold(run):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.medium
def test_the_refusal_names_the_process(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run = fill(store)
        with (
            until_killed(lambda ready: hold(url, run, ready)) as owner,
            pytest.raises(UserError, match=rf"by process {owner} on "),
            store.hold(run),
        ):
            pass


@pytest.mark.medium
def test_a_lock_leaves_no_file_and_one_of_a_killed_process_is_used_again(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run = fill(store)
        with until_killed(lambda ready: hold(url, run, ready)) as owner:
            kill(owner)
        left = tmp_path / f"audit.db-run-{run}"
        assert left.exists()
        with store.hold(run):
            assert left.exists()
        assert not left.exists()


@pytest.mark.medium
def test_a_child_of_a_killed_process_does_not_keep_the_lock(tmp_path):
    url = str(tmp_path / "audit.db")

    def parent(ready):
        with Store.open(url, create=False) as store, store.hold(run):
            forked(time.sleep, 5)
            ready()
            time.sleep(60)

    with Store.open(url, create=True) as store:
        run = fill(store)
        with until_killed(parent) as owner:
            kill(owner)
        with store.hold(run):
            pass


@pytest.mark.medium
def test_a_lock_that_cannot_be_made_is_one_line(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        run = fill(store)
        (tmp_path / f"audit.db-run-{run}").mkdir()
        refused = r"audit.db-run-.*the run's lock cannot be made \(Is a directory\)"
        with pytest.raises(UserError, match=refused), store.hold(run):
            pass


def test_runs_have_locks_of_their_own():
    keys = {lock_key(f"01K{number:023d}") for number in range(1000)}
    assert len(keys) == 1000
    assert all(0 <= key < 2**63 for key in keys)


def execute(url, number):
    with Store.open(url, create=False) as store:
        run = store.begin_run(start(actor=f"writer {number}"))
        with store.hold(run):
            for index in range(REQUESTS):
                made = generation(((4, 2), (3, 3)), seed=100 * number + index)
                store.add_requests(run, [NewRequest("spec", "chat", f"case-{index}", 0, made)])
            store.finish_run(run, RunStatus.FINISHED, 0)


@pytest.mark.medium
def test_several_processes_write_runs_to_one_store(any_url):
    writers = [forked(execute, any_url, number) for number in range(WRITERS)]
    assert [ended(writer) for writer in writers] == [0] * WRITERS
    with Store.open(any_url, create=False) as store:
        runs = store.list_runs(10)
        assert [run.status for run in runs] == [RunStatus.FINISHED] * WRITERS
        assert [len(store.finished(run.ulid)) for run in runs] == [REQUESTS] * WRITERS
        assert len({store.load_run(run.ulid).environment.sha256 for run in runs}) == 1
        assert store.damage() == ()


def begin_again(url, run, ready):
    """Writes and never commits."""
    with Store.open(url, create=False) as store, Session(store._engine) as session, session.begin():
        half = NewRequest("spec", "chat", "half", 0, generation(((4, 2),), seed=9))
        request_writer.add_requests(session, run, [half])
        session.flush()
        ready()
        time.sleep(60)


@pytest.mark.medium
def test_a_transaction_of_a_killed_process_is_taken_back_and_blocks_nobody(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill(store)
        before = store.finished(run)
        with until_killed(lambda ready: begin_again(any_url, run, ready)) as owner:
            kill(owner)
        assert store.finished(run) == before
        store.add_requests(run, [NewRequest("spec", "chat", "half", 0, generation(((4, 2),), seed=9))])
        store.finish_run(run, RunStatus.FINISHED, 0)
        assert store.damage() == ()
