"""A pool of SLURM's jobs when they end in any way, on stand-ins; tests/slurm runs jobs on a real cluster."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from audit.errors import UserError
from audit.executors import on_slurm
from audit.executors.job import Job, PartDone, PartLost, WorkPart
from audit.executors.on_slurm import Pauses, SlurmExecutor, SlurmPool
from audit.executors.slurm_jobs import COMMANDS, SBATCH, NoAnswer, job_folder, require_own, slurm_options
from audit.suite.allowances import NOTHING
from engine.core.errors import EngineError

SOON = Pauses(look=0.0, ask=0.0, way=0.0, ending=1.0, silence=0.0)
TRACE = f"Job failed with trace:\n{'-' * 22}\nTraceback\nImportError: no audit\n{'-' * 22}\nlogs are there"


class Handle:
    """A submitted job, whose answer is a file."""

    def __init__(self, folder, number, part):
        self.job_id, self.part = str(number), part
        self.paths = SimpleNamespace(
            folder=folder, result_pickle=folder / f"{number}_0_result.pkl", stderr=folder / f"{number}_0_log.err"
        )
        self.outcome = PartDone(part, (), ())

    def answers(self, outcome=None):
        self.outcome = outcome or self.outcome
        self.paths.result_pickle.touch()

    def result(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Cluster:
    """SLURM and submitit in one: jobs run until a test says how they end."""

    def __init__(self, folder):
        self.folder, self.handles, self.known, self.cancelled, self.refusal = folder, {}, {}, [], None

    def submit(self, function, job, part):
        assert function is on_slurm.run_part
        if self.refusal:
            print(self.refusal, file=sys.stderr)
            raise self.refusal
        handle = Handle(self.folder, len(self.handles) + 1, part)
        self.handles[handle.job_id], self.known[handle.job_id] = handle, "RUNNING"
        return handle

    def states(self, jobs):
        if isinstance(self.known, Exception):
            raise self.known
        return {name: self.known[name] for name in jobs if name in self.known}

    def cancel(self, jobs):
        self.cancelled += jobs
        self.known |= dict.fromkeys(jobs, "CANCELLED")


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def pool_of(cluster, workers=2, pauses=SOON):
    return SlurmPool(cluster, cluster, None, workers, pauses)


def part(number=0):
    return WorkPart(number, ())


def test_a_pool_has_a_job_for_each_part_and_gives_answers_as_they_come(cluster):
    pool = pool_of(cluster)
    for number in (0, 1):
        assert pool.room()
        pool.submit(part(number))
    assert not pool.room()
    cluster.handles["2"].answers()
    assert pool.wait() == PartDone(part(1), (), ())
    assert pool.room()
    assert pool.jobs == ("1",)
    cluster.handles["1"].answers()
    assert pool.wait() == PartDone(part(0), (), ())
    pool.close()
    assert cluster.cancelled == []


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "COMPLETED"])
def test_a_job_that_ended_without_an_answer_is_lost_with_its_state(state, cluster):
    pool = pool_of(cluster)
    pool.submit(part(0))
    pool.submit(part(1))
    cluster.known["2"] = state
    assert pool.wait() == PartLost(part(1), f"with state {state}")
    assert pool.jobs == ("1",)


def test_a_job_that_slurm_has_forgotten_is_lost(cluster):
    pool = pool_of(cluster)
    pool.submit(part())
    del cluster.known["1"]
    cluster.handles["1"].paths.stderr.write_text("Killed\n")
    log = cluster.handles["1"].paths.stderr
    assert pool.wait() == PartLost(part(), f"with an end that SLURM no longer knows (see {log})")


def test_an_answer_may_come_after_the_end_of_its_job(cluster):
    pool = pool_of(cluster, pauses=Pauses(look=0.01, ask=0.0, way=30.0))
    pool.submit(part())
    states, asked = cluster.states, []

    def answering(jobs):
        asked.append(jobs)
        if len(asked) == 3:
            cluster.handles["1"].answers()
        return states(jobs)

    cluster.states = answering
    cluster.known["1"] = "COMPLETED"
    assert pool.wait() == PartDone(part(), (), ())
    assert len(asked) == 3


def test_a_job_that_an_administrator_queues_again_is_waited_for(cluster):
    pool = pool_of(cluster, pauses=Pauses(look=0.01, ask=0.0, way=0.05))
    pool.submit(part())
    seen = []

    def changing(jobs):
        seen.append(jobs)
        if len(seen) == 20:
            cluster.handles["1"].answers()
        return {"1": "NODE_FAIL" if len(seen) < 3 else "PENDING"}

    cluster.states = changing
    assert pool.wait() == PartDone(part(), (), ())


def test_a_job_in_a_state_of_another_version_of_slurm_is_waited_for(cluster):
    pool = pool_of(cluster)
    pool.submit(part())
    states, seen = cluster.states, []

    def changing(jobs):
        seen.append(cluster.known["1"])
        cluster.known["1"] = "POWER_UP_NODE" if len(seen) < 5 else "TIMEOUT"
        return states(jobs)

    cluster.states = changing
    assert pool.wait() == PartLost(part(), "with state TIMEOUT")
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (RuntimeError(TRACE), "with ImportError: no audit"),
        (EOFError("Ran out of input"), "with an unreadable result (EOFError)"),
        (AttributeError("no such class"), "with an unreadable result (AttributeError)"),
        ("a text", "with a result that is a str"),
    ],
)
def test_an_answer_that_is_none_is_a_loss(outcome, reason, cluster):
    pool = pool_of(cluster)
    pool.submit(part())
    cluster.handles["1"].answers(outcome)
    assert pool.wait() == PartLost(part(), reason)


def test_a_controller_that_is_silent_is_waited_for_and_then_named(cluster):
    pool = pool_of(cluster, pauses=Pauses(look=0.01, ask=0.0, way=0.0, silence=0.1))
    pool.submit(part())
    known, cluster.known = cluster.known, NoAnswer("connection refused")
    with pytest.raises(EngineError, match=r"SLURM has not answered for 0 minutes, last: connection refused; .*resume"):
        pool.wait()
    # its jobs went on
    cluster.handles["1"].answers()
    assert pool.wait() == PartDone(part(), (), ())
    cluster.known = known


def test_what_sbatch_refuses_is_one_line(cluster, capsys):
    pool = pool_of(cluster)
    cluster.refusal = RuntimeError("sbatch: error: invalid partition specified: x\nsbatch: error: Batch job failed\n")
    with pytest.raises(EngineError, match="sbatch refused the job: sbatch: error: Batch job failed; correct --slurm"):
        pool.submit(part())
    assert pool.room()
    assert capsys.readouterr().err == ""


def test_a_pool_that_closes_cancels_its_jobs_and_waits_for_their_ends(cluster):
    pool = pool_of(cluster)
    pool.submit(part(0))
    pool.submit(part(1))
    ends = iter(["COMPLETING", "COMPLETING", "CANCELLED"])
    states = cluster.states
    cluster.states = lambda jobs: states(jobs) | {"1": next(ends)}
    pool.close()
    assert cluster.cancelled == ["1", "2"]
    assert list(ends) == []
    assert pool.jobs == ()


def test_the_options_are_those_of_sbatch():
    given = ("partition=short", "--mem-per-cpu=2G", "cpus_per_task=4", "partition=long", "exclusive", "folder=~/x")
    found = slurm_options(given)
    assert found.sbatch == {"partition": "long", "mem-per-cpu": "2G", "cpus-per-task": "4", "exclusive": True}
    assert found.folder == Path.home() / "x"
    assert not SBATCH & {"array", "nodes", "ntasks", "output", "error", "requeue", "signal", "wrap", "dependency"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partiton=short", r'"partiton" is not an option of these jobs; did you mean partition\?'),
        ("array=1-4", r'"array" is not an option of these jobs; known are folder, account, '),
        ("time=", "the value is missing; write time=VALUE"),
        ("time", "the value is missing; write time=VALUE"),
        ("comment=a\n#SBATCH --wrap=x", "a character that is not printable"),
    ],
)
def test_an_option_that_is_none_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        slurm_options([text])


def test_the_folder_of_jobs_is_private_and_goes_with_them(tmp_path):
    with job_folder(tmp_path) as made:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        (made / "1_0_result.pkl").touch()
    assert list(tmp_path.iterdir()) == []


def test_after_an_error_the_logs_stay_and_the_pickles_go(tmp_path):
    with pytest.raises(EngineError):
        failing_jobs(tmp_path, EngineError, "Killed")
    (made,) = tmp_path.iterdir()
    assert [path.name for path in made.iterdir()] == ["1_0_log.err"]


def failing_jobs(parent, stop, errors):
    with job_folder(parent) as made:
        (made / "1_submitted.pkl").write_bytes(b"prompts")
        (made / "1_0_log.out").touch()
        (made / "1_0_log.err").write_text(errors)
        raise stop


@pytest.mark.parametrize("stop", [EngineError, KeyboardInterrupt])
def test_a_folder_without_logs_goes_after_an_error_too(stop, tmp_path):
    with pytest.raises(stop):
        failing_jobs(tmp_path, stop, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702])
@pytest.mark.parametrize("above", [True, False])
def test_a_folder_that_others_can_write_to_is_refused(above, mode, tmp_path):
    place = tmp_path / "place"
    (place / "below").mkdir(parents=True)
    place.chmod(mode)
    folder = place / "below" if above else place
    with pytest.raises(
        UserError, match=rf"other users can write to {place}, .*chmod go-w {place}, or choose --slurm f"
    ):
        require_own(folder)
    # as in /tmp
    place.chmod(mode | stat.S_ISVTX)
    require_own(folder)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    if os.geteuid() == 0:
        os.chown(tmp_path, 77, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(UserError, match="belongs to another user"):
        require_own(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none is not a folder; make it, or choose --slurm folder=PATH"):
        require_own(tmp_path / "none")


@pytest.fixture
def submitit(monkeypatch):
    """The package as far as the executor uses it; what jobs are submitted with is kept."""
    made = []

    class Executor:
        def __init__(self, folder, **limits):
            self.folder, self.limits = folder, limits
            made.append(self)

        def update_parameters(self, **parameters):
            self.parameters = parameters

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=Executor))
    return made


def test_without_slurm_the_command_says_so(submitit, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sbatch is not there; run the command on a machine that submits jobs to SLURM"):
        SlurmExecutor()


def test_jobs_get_the_threads_of_workers_and_the_options_of_the_user(submitit, tmp_path, monkeypatch):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in COMMANDS:
        (commands / name).write_text("#!/bin/sh\nexit 1\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands))
    executor = SlurmExecutor(slurm_options([f"folder={tmp_path}", "mem=4G"]))
    with executor.pool(Job(tmp_path, 3, NOTHING, None), 2) as pool:
        assert pool.room()
        assert submitit[0].folder.parent == tmp_path
    given = submitit[0].parameters["additional_parameters"]
    assert given == {"job-name": "specaudit", "cpus-per-task": 3, "ntasks": 1, "no-requeue": True, "mem": "4G"}
    assert submitit[0].limits["max_num_timeout"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
