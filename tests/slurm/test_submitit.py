"""submitit's own processes in place of SLURM's: the content of one process and of local workers, also if one dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from audit.executors.on_slurm import Pauses, SlurmExecutor
from audit.executors.slurm_jobs import SlurmOptions
from tests.audit.executors.spread_suites import facts, newest
from tests.audit.invoke import invoke
from tests.slurm.runs import spread_run

pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("ignore")]


class Processes:
    """Submits processes, and knows their states as SLURM would."""

    def __init__(self, folder):
        import submitit

        self.inner = submitit.LocalExecutor(folder)
        self.inner.update_parameters(timeout_min=30)
        self.handles = {}

    def submit(self, *call):
        handle = self.inner.submit(*call)
        self.handles[handle.job_id] = handle
        return handle

    def states(self, jobs):
        return {name: "RUNNING" if self.handles[name].state == "RUNNING" else "FAILED" for name in jobs}

    def cancel(self, jobs):
        for name in jobs:
            self.handles[name].cancel()


class OnProcesses(SlurmExecutor):
    """Kills the process of a job at its first chance, `kills` times."""

    def __init__(self, folder, kills=0):
        super().__init__(SlurmOptions(folder=folder))
        self.pauses, self.left, self.going, self.submitted = Pauses(look=0.1, ask=0.2, way=0.5), kills, True, 0

    def require(self):
        pass

    def submitter(self, folder, threads):
        self.processes = Processes(folder)
        return self.processes

    def queue(self):
        return self.processes

    @contextmanager
    def pool(self, job, workers):
        with super().pool(job, workers) as pool:
            thread = Thread(target=self._kill, args=(pool,), daemon=True)
            thread.start()
            yield pool
            self.going = False
            thread.join()
            self.submitted = len(self.processes.handles)

    def _kill(self, pool):
        killed = set()
        while self.going and self.left:
            time.sleep(0.5)
            for name in pool.jobs:
                children = Path(f"/proc/{name}/task/{name}/children").read_text().split()
                if children and name not in killed and self.left:
                    time.sleep(1.0)
                    os.kill(int(children[0]), signal.SIGKILL)
                    killed.add(name)
                    self.left -= 1


@pytest.fixture(scope="module")
def by_workers(suite, tmp_path_factory):
    store = str(tmp_path_factory.mktemp("workers") / "workers.db")
    done = invoke("run", str(suite), "--workers", "2", "--store", store)
    assert done.exit_code in (0, 3), done.stderr
    return facts(store, newest(store))


def test_processes_of_submitit_give_the_run_of_one_process_and_of_local_workers(suite, expected, by_workers, tmp_path):
    executor = OnProcesses(tmp_path)
    assert spread_run(suite, tmp_path, executor) == expected == by_workers
    # two jobs decode, and one reads
    assert executor.submitted == 3


def test_a_killed_process_changes_nothing(suite, expected, tmp_path):
    executor = OnProcesses(tmp_path, kills=1)
    assert spread_run(suite, tmp_path, executor) == expected
    assert (executor.left, executor.submitted) == (0, 4)
