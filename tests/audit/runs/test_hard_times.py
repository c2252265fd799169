"""A disk that is full at any moment, a store that others hold at any moment: nothing lost, one line, the same content.

`--points N` sets how many moments are tried.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from audit.api.running import Quiet
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from audit.store.base.failures import StoreFailure
from tests.audit.runs.remembering import committed, prepared_suite
from tests.audit.store.conftest import upgraded_file
from tests.support.figures import keep
from tests.support.processes import ended, forked

HOLDS = (("BEGIN IMMEDIATE",), ("BEGIN EXCLUSIVE",), ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"))


def limited(store: Store, pages: int) -> None:
    """Let the file grow by so many pages and no more."""
    with store._engine.connect() as connection:
        size = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {size + pages}")


def reference(folder: Path, config: pytest.Config):
    """A prepared suite, the content root and the growth in pages of a run that nothing disturbs."""
    prepared, path = prepared_suite(folder), folder / "whole.db"
    shutil.copy(upgraded_file(config), path)
    before = path.stat().st_size
    with Store.open(str(path), create=False) as store:
        root = store.load_run(run(prepared, store, Quiet()).run).content_root
    return prepared, (root, (path.stat().st_size - before) // 4096)


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_moment(tmp_path, pytestconfig):
    points = pytestconfig.getoption("--points")
    prepared, (root, pages) = reference(tmp_path, pytestconfig)
    for point in range(points):
        path = tmp_path / f"{point}.db"
        shutil.copy(upgraded_file(pytestconfig), path)
        # the last point lies just before the run's end
        with Store.open(str(path), create=False) as store:
            limited(store, 1 + point * (pages - 4) // points)
            with pytest.raises(StoreFailure) as caught:
                run(prepared, store, Quiet())
        assert "\n" not in str(caught.value)
        assert "the disk is full" in str(caught.value)
        before = committed(str(path))
        with Store.open(str(path), create=False) as store:
            runs = store.list_runs(1)
            name = runs[0].ulid if runs else run(prepared, store, Quiet()).run
            if runs:
                resume(prepared, store, name, Quiet())
            assert before.items() <= committed(str(path)).items()
            assert (store.run_status(name), store.load_run(name).content_root) == (RunStatus.FINISHED, root)
            assert store.damage() == ()
    keep(pytestconfig, "full_disk", {"points": points})


class Holders(Quiet):
    """Another process takes the store at chosen requests and keeps it for up to 400 ms."""

    def __init__(self, path, chance, situations):
        self.path, self.chance, self.left, self.processes = path, chance, situations, []

    def advance(self, tokens):
        if self.left:
            self.left -= 1
            statements, seconds = HOLDS[self.left % len(HOLDS)], self.chance.uniform(0.0, 0.4)
            self.processes.append(forked(self.hold, statements, seconds))

    def hold(self, statements, seconds):
        database = sqlite3.connect(self.path, isolation_level=None, timeout=5)
        for statement in statements:
            database.execute(statement)
        time.sleep(seconds)


@pytest.mark.slow
def test_a_store_that_others_hold_at_any_moment(tmp_path, pytestconfig):
    situations = pytestconfig.getoption("--points")
    prepared, (root, _) = reference(tmp_path, pytestconfig)
    path = tmp_path / "held.db"
    shutil.copy(upgraded_file(pytestconfig), path)
    holders = Holders(path, random.Random(11), situations)
    with Store.open(str(path), create=False) as store:
        name = run(prepared, store, holders).run
        assert store.load_run(name).content_root == root
        assert store.damage() == ()
    assert holders.left == 0
    # a holder that came while another had the store gave up, or had it later
    codes = [ended(process) for process in holders.processes]
    assert codes.count(0) >= situations // 2
    keep(pytestconfig, "locks", {"situations": situations})
