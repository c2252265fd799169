"""Kills at random moments: nothing committed is lost, nothing is repeated, and the content is the same.

`--kills N` sets their number per database.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from audit.api.running import Quiet
from audit.runs.prepare import PreparedRun
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from tests.audit.runs.remembering import committed, prepared_suite
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.figures import keep
from tests.support.processes import ended, forked, kill

__all__ = ["any_url", "cluster", "postgres"]


@dataclass
class Execution:
    """Runs of one suite in forked processes, some of which are killed."""

    prepared: PreparedRun
    url: str
    kills: int = 0
    during: list[str] = field(default_factory=list)

    def once(self) -> None:
        """What a process does: begin the run, or continue the last one that is not finished."""
        with Store.open(self.url, create=False) as store:
            runs = store.list_runs(1)
            if not runs or runs[0].status is RunStatus.FINISHED:
                run(self.prepared, store, Quiet())
            else:
                resume(self.prepared, store, runs[0].ulid, Quiet())

    def killed(self, after: float) -> bool:
        """Run in a process that is killed after some seconds; False if it ended before."""
        process = forked(self.once)
        deadline = time.monotonic() + after
        while time.monotonic() < deadline:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0
                return False
            time.sleep(0.002)
        kill(process)
        self.kills += 1
        return True

    def whole(self) -> float:
        """Run to the end; the duration in seconds."""
        began = time.monotonic()
        assert ended(forked(self.once)) == 0
        return time.monotonic() - began


def newest(url: str) -> str | None:
    with Store.open(url, create=False) as store:
        runs = store.list_runs(1)
        return runs[0].ulid if runs else None


def repeat_until(enough: Callable[[], bool], execution: Execution, chance: random.Random, duration: float) -> set[str]:
    """Kill and continue until there were enough kills and the last run is finished; the finished runs."""
    finished: set[str] = set()
    while not enough():
        before, name = committed(execution.url), newest(execution.url)
        killed = execution.killed(chance.uniform(0.0, duration))
        after = committed(execution.url)
        if newest(execution.url) == name:
            # nothing that was committed is lost or replaced
            assert before.items() <= after.items()
        if not killed:
            finished.add(str(newest(execution.url)))
    return finished


@pytest.mark.slow
def test_kills_lose_and_repeat_nothing(any_url, tmp_path, pytestconfig):
    kills = pytestconfig.getoption("--kills")
    execution = Execution(prepared_suite(tmp_path), any_url)
    execution.whole()
    duration = execution.whole()
    reference = str(newest(any_url))
    finished = repeat_until(lambda: execution.kills >= kills, execution, random.Random(17), duration)
    execution.whole()
    finished.add(str(newest(any_url)))
    with Store.open(any_url, create=False) as store:
        root = store.load_run(reference).content_root
        assert root is not None
        for name in finished:
            record = store.load_run(name)
            assert (record.status, record.content_root) == (RunStatus.FINISHED, root)
            assert len(store.finished(name)) == len(store.finished(reference))
            assert [each.verdict for each in store.checks(name)] == [each.verdict for each in store.checks(reference)]
        interruptions = sum(event.detail == "resumed" for name in finished for event in store.load_run(name).events)
        print(f"{execution.kills} kills, {len(finished)} runs finished, {interruptions} resumed, {duration:.1f} s each")
        assert interruptions >= kills // 2
        figures = {"kills": execution.kills, "finished": len(finished), "resumed": interruptions}
        keep(pytestconfig, f"kills_{'sqlite' if 'sqlite' in any_url else 'postgresql'}", figures)
        assert store.damage() == ()
