"""Jobs of a real SLURM: the content of one process, also when jobs are cancelled, and what SLURM refuses."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from threading import Thread

import pytest

from audit.executors.job import WorkPart, job_of
from audit.executors.on_slurm import Pauses, SlurmExecutor
from audit.executors.slurm_jobs import NoAnswer, SlurmQueue, slurm_options
from audit.executors.spread import TRIES
from audit.runs.prepare import prepare
from audit.store import RunStatus, Store
from audit.suite.allowances import NOTHING
from audit.suite.loader import load_suite
from engine.core.errors import EngineError
from tests.audit.executors.spread_suites import facts, newest
from tests.audit.invoke import invoke
from tests.slurm.runs import spread_run

pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("ignore")]
SOON = Pauses(look=0.1, ask=0.5, way=1.0)


def run_by_jobs(suite, folder, *options, workers=2):
    store = str(folder / "slurm.db")
    done = invoke(
        *("run", str(suite), "--executor", "slurm", "--workers", str(workers), "--store", store),
        *("--slurm", f"folder={folder}", "--results", str(folder / "results.json"), *options),
    )
    return done, store


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_give_the_run_of_one_process(workers, cluster, suite, expected, tmp_path, monkeypatch):
    # of a command that is in a job of an array itself; jobs inherit them
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    options = ("--slurm", "partition=short", "--slurm", "mem=1G", "--slurm", "time=0:30:00", "--slurm", "comment=a b")
    done, store = run_by_jobs(suite, tmp_path, *options, workers=workers)
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(store, newest(store)) == expected
    assert list(tmp_path.glob("specaudit-slurm-*")) == []
    assert_jobs_end()


def assert_jobs_end():
    """No job waits, and none goes on: a job has answered some time before its process ends."""
    end = time.monotonic() + Pauses().ending
    while (left := own_jobs()) and time.monotonic() < end:
        time.sleep(SOON.look)
    assert left == []


def own_jobs():
    listed = subprocess.run(["squeue", "-h", "--states=PENDING,RUNNING", "-o", "%i"], capture_output=True, text=True)
    return listed.stdout.split()


class Cancelling(SlurmExecutor):
    """Cancels a running job, until it was done a number of times."""

    def __init__(self, folder, times):
        super().__init__(slurm_options([f"folder={folder}"]))
        self.pauses, self.left, self.going = SOON, times, True

    @contextmanager
    def pool(self, job, workers):
        with super().pool(job, workers) as pool:
            thread = Thread(target=self._work, args=(pool,), daemon=True)
            thread.start()
            try:
                yield pool
            finally:
                self.going = False
                thread.join()

    def _work(self, pool):
        done = set()
        while self.going and self.left:
            time.sleep(0.2)
            states = self.queue().states(pool.jobs or ("1",))
            running = [name for name in pool.jobs if states.get(name) == "RUNNING" and name not in done]
            if running:
                # with the models loaded, or half
                time.sleep(2.0)
                self.queue().cancel(running[:1])
                done.add(running[0])
                self.left -= 1


def test_cancelled_jobs_change_nothing(cluster, suite, expected, tmp_path):
    executor = Cancelling(tmp_path, TRIES - 1)
    assert spread_run(suite, tmp_path, executor) == expected
    assert executor.left == 0
    assert list(tmp_path.glob("specaudit-slurm-*")) == []


class WithoutPackages(SlurmExecutor):
    """Jobs on nodes that lack this package."""

    def submitter(self, folder, threads):
        made = super().submitter(folder, threads)
        made.python = f"{made.python} -I -S"
        return made


def test_jobs_that_cannot_start_end_the_run_and_leave_their_logs(cluster, suite, tmp_path):
    executor = WithoutPackages(slurm_options([f"folder={tmp_path}"]))
    executor.pauses = SOON
    message = (
        rf"{TRIES} workers died over it, the last one with state FAILED \(see {tmp_path}/specaudit-slurm-.*\.err\)"
    )
    with pytest.raises(Exception, match=message):
        spread_run(suite, tmp_path, executor)
    (folder,) = tmp_path.glob("specaudit-slurm-*")
    assert {path.suffix for path in folder.iterdir()} == {".err"}
    assert "No module named" in next(folder.iterdir()).read_text()


def test_what_sbatch_refuses_ends_the_run_with_its_words(cluster, suite, tmp_path):
    done, store = run_by_jobs(suite, tmp_path, "--slurm", "partition=nowhere")
    assert done.exit_code == 2
    assert "sbatch refused the job" in done.stderr.splitlines()[-1]
    assert "Invalid partition name specified; correct --slurm" in done.stderr.splitlines()[-1]
    assert done.stderr.count("nowhere") == 0
    with Store.open(store, create=False, read_only=True) as opened:
        assert opened.run_status(opened.resolve("latest")) is RunStatus.FAILED


def test_a_job_is_one_task_that_slurm_does_not_repeat(cluster, suite, tmp_path):
    executor = SlurmExecutor(slurm_options([f"folder={tmp_path}", "job-name=mine", "exclusive"]))
    with executor.pool(job_of(prepare(load_suite(suite)), 2, NOTHING), 1) as pool:
        pool.submit(WorkPart(0, ()))
        assert not pool.room()
        (name,) = pool.jobs
        shown = subprocess.run(["scontrol", "show", "job", name], capture_output=True, text=True).stdout
    for words in ("JobName=mine", "Requeue=0", "NumNodes=1", "NumTasks=1", "CPUs/Task=2", "OverSubscribe=NO"):
        assert words in shown
    # left with its context, the job was cancelled and has ended
    assert SlurmQueue().states([name])[name] == "CANCELLED"
    assert list(tmp_path.glob("specaudit-slurm-*")) == []


def test_the_queue_leaves_unknown_jobs_out(cluster):
    assert SlurmQueue().states(["99999"]) == {}
    assert SlurmQueue().states(["99998", "99999"]) == {}
    SlurmQueue().cancel(["99999"])


def test_a_controller_that_is_away_is_no_answer(cluster, tmp_path, monkeypatch):
    elsewhere = tmp_path / "slurm.conf"
    text = cluster.read_text().replace("SlurmctldPort=", "SlurmctldTimeout=5\nMessageTimeout=5\nSlurmctldPort=1")
    elsewhere.write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(elsewhere))
    with pytest.raises(NoAnswer, match="slurm"):
        SlurmQueue().states(["1"])
    with pytest.raises(EngineError, match=r"scancel failed .*end the jobs of the run: scancel 1 2"):
        SlurmQueue().cancel(["1", "2"])
