"""Workers decode the content of one process, whatever their number and however often they die."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from threading import Thread

import pytest

from audit.api.running import Quiet
from audit.errors import CannotDecide, UserError
from audit.executors.job import PartFailed, PartLost, job_of
from audit.executors.local import LocalExecutor, LocalPool
from audit.executors.spread import TRIES, Spread
from audit.executors.worker import prepared_worker
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from audit.suite.allowances import NOTHING
from audit.suite.loader import load_suite
from engine.models.files.folder import bundled_folder
from tests.audit.executors.spread_suites import facts, local_run, newest, spread_suite
from tests.audit.invoke import invoke
from tests.support.figures import keep
from tests.support.observers import StopsAfter


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return spread_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def expected(suite):
    store = str(suite.with_name("local.db"))
    return facts(store, local_run(suite, store))


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as opened:
        yield opened


def spread(suite, executor, workers=2):
    prepared = prepare(load_suite(suite))
    return prepared, Spread(prepared, job_of(prepared, 1, NOTHING), executor, workers).fill


@pytest.mark.medium
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_give_the_run_of_one_process(workers, suite, expected, tmp_path):
    store = str(tmp_path / "workers.db")
    done = invoke(
        *("run", str(suite), "--workers", str(workers), "--store", store),
        *("--results", str(tmp_path / "results.json")),
    )
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(store, newest(store)) == expected


class InProcess:
    """A pool whose workers are this process, so that tests can count and break them."""

    whole_jobs = False

    def __init__(self, outcome=lambda _number, done: done):
        self.outcome, self.parts, self.waiting, self.closed = outcome, [], [], False

    def pool(self, job, workers):
        self.worker = prepared_worker(job)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def room(self):
        return len(self.waiting) < 2

    def submit(self, part):
        self.waiting.append(part)

    def wait(self):
        part = self.waiting.pop(0)
        self.parts.append(part)
        return self.outcome(len(self.parts), self.worker.run(part))


@pytest.mark.medium
def test_the_parts_are_of_two_waves_and_have_every_request_once(suite, expected, store):
    executor = InProcess()
    prepared, fill = spread(suite, executor)
    name = run(prepared, store, Quiet(), fill=fill).run
    assert facts(store.url, name) == expected
    keys = [key for part in executor.parts for piece in part.pieces for key in piece.keys]
    assert len(keys) == len(set(keys)) == len(expected["requests"])
    reads = [bool(piece.read) for part in executor.parts for piece in part.pieces]
    assert reads == sorted(reads)
    assert any(reads)
    assert executor.closed


@pytest.mark.medium
def test_few_jobs_have_many_pieces(suite, expected, store):
    executor = InProcess()
    executor.whole_jobs = True
    prepared, fill = spread(suite, executor)
    assert facts(store.url, run(prepared, store, Quiet(), fill=fill).run) == expected
    assert [part.number for part in executor.parts] == [0, 1, 0]


@pytest.mark.medium
def test_lost_parts_are_done_again_and_nothing_is_stored_twice(suite, expected, store):
    lost = set()

    def dies_once(_number, done):
        if done.part.pieces[0].keys in lost:
            return done
        lost.add(done.part.pieces[0].keys)
        return PartLost(done.part, "by signal 9")

    executor = InProcess(dies_once)
    prepared, fill = spread(suite, executor)
    name = run(prepared, store, Quiet(), fill=fill).run
    assert len(executor.parts) == 2 * len(lost)
    assert facts(store.url, name) == expected


@pytest.mark.medium
def test_a_part_that_loses_every_worker_stops_a_run_that_can_be_resumed(suite, expected, store):
    executor = InProcess(lambda _, done: PartLost(done.part, "by signal 9") if is_of(done, "greedy") else done)
    prepared, fill = spread(suite, executor)
    message = rf"requests of greedy: {TRIES} workers died over it, the last one by signal 9; .*audit resume "
    with pytest.raises(UserError, match=message):
        run(prepared, store, Quiet(), fill=fill)
    name = newest(store.url)
    assert store.run_status(name) is RunStatus.FAILED
    resume(prepared, store, name, Quiet(), fill=spread(suite, InProcess())[1])
    assert facts(store.url, name) == expected


def is_of(done, arm):
    return any(piece.arm == arm for piece in done.part.pieces)


@pytest.mark.medium
@pytest.mark.parametrize("with_workers", [True, False])
def test_an_interrupted_run_goes_on_with_and_without_workers(with_workers, suite, expected, store):
    prepared, fill = spread(suite, InProcess())
    # in the middle of the arm that remembers, which is decoded again
    with pytest.raises(Interrupted) as stopped:
        run(prepared, store, StopsAfter(len(expected["requests"]) - 3), fill=None if with_workers else fill)
    resume(prepared, store, stopped.value.run, Quiet(), fill=fill if with_workers else None)
    found = facts(store.url, stopped.value.run)
    # the memory of a part of the run is another one
    assert found | {"memory": 0} == expected | {"memory": 0}


RELATIVE = """\
version: 1
name: relative
models: {target: {source: ./model, numerics: ordered}}
workloads: [{name: chat, prompts: "suites:prompts/chat.jsonl", limit: 1}]
sampling: {max_new_tokens: 4}
arms: [{name: greedy, proposer: {kind: ngram, gamma: 2}, verifier: greedy, checks: [replay]}]
"""


def without_the_last(done):
    return replace(done, requests=done.requests[:-1])


def twice(done):
    return replace(done, requests=(*done.requests, done.requests[0]))


def of_another_case(done):
    return replace(done, requests=(replace(done.requests[0], case_id="foreign"), *done.requests[1:]))


def of_another_stream(done):
    first = done.requests[0]
    request = replace(first.generation.request, stream=first.generation.request.stream + 1)
    return replace(
        done, requests=(replace(first, generation=replace(first.generation, request=request)), *done.requests[1:])
    )


@pytest.mark.medium
@pytest.mark.parametrize("change", [without_the_last, twice, of_another_case, of_another_stream])
def test_an_answer_to_something_else_is_not_stored(change, suite, store):
    executor = InProcess(lambda _, done: change(done))
    prepared, fill = spread(suite, executor)
    with pytest.raises(CannotDecide, match="nothing of its answer was stored"):
        run(prepared, store, Quiet(), fill=fill)
    assert store.finished(newest(store.url)) == frozenset()


@pytest.mark.medium
def test_an_engine_that_fails_in_a_worker_fails_the_run(suite, store):
    executor = InProcess(lambda _, done: PartFailed(done.part, "the engine is broken"))
    prepared, fill = spread(suite, executor)
    with pytest.raises(UserError, match="failed: the engine is broken"):
        run(prepared, store, Quiet(), fill=fill)


@pytest.mark.medium
def test_a_suite_may_be_named_by_a_relative_path(tmp_path, monkeypatch):
    """A worker gets the whole path, so it sees model folders at other paths than the coordinator does."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundled_folder("bundled:draft"), tmp_path / "model")
    path = tmp_path / "suite.yaml"
    path.write_text(RELATIVE)
    job = job_of(prepare(load_suite("suite.yaml")), 1, NOTHING)
    assert prepared_worker(job).arms.keys() == job.identity.arms.keys()
    text = path.read_text().replace("numerics: ordered", "numerics: fast")
    path.write_text(text)
    with pytest.raises(UserError, match=r"suite differs; arm baseline.greedy has another effective configuration"):
        prepared_worker(job)


def test_a_worker_with_another_environment_refuses(suite):
    prepared = prepare(load_suite(suite))
    job = job_of(prepared, 1, NOTHING)
    place = replace(job.identity.environment, packages={"torch": "0.1"})
    other = replace(job, identity=replace(job.identity, environment=place, digests={"suite": "0" * 64}))
    with pytest.raises(UserError, match=r"another environment: suite differs; package .* start workers with the same"):
        prepared_worker(other)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--until", "decided", "--max-tokens", "9999"), "--until needs all requests in one process"),
        (("--text", "off"), "cannot be spread"),
        (("--workers", "0"), "0 is not in the range"),
    ],
)
def test_what_workers_cannot_do_is_refused(options, word, suite, tmp_path):
    done = invoke("run", str(suite), "--workers", "2", *options, "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert word in done.stderr
    assert not (tmp_path / "none.db").exists()


class Killing(LocalExecutor):
    """Kills a busy worker at random moments until there were enough kills; fewer than a part survives."""

    def __init__(self, kills, chance, longest):
        self.left, self.chance, self.longest, self.going = kills, chance, longest, True

    def pool(self, job, workers):
        executor = self

        class Watched(LocalPool):
            def close(self):
                executor.going = False
                super().close()

        pool = Watched(job, workers)
        Thread(target=self._kill, args=(pool,), daemon=True).start()
        return Closing(pool)

    def _kill(self, pool):
        while self.going and self.left:
            time.sleep(self.chance.uniform(0.0, self.longest))
            processes = pool.processes
            if processes and self.going:
                os.kill(self.chance.choice(processes), signal.SIGKILL)
                self.left -= 1


class Closing:
    def __init__(self, pool):
        self.pool = pool

    def __enter__(self):
        return self.pool

    def __exit__(self, *_):
        self.pool.close()


def killed_runs(suite, store, kills, longest) -> tuple[int, int]:
    """Run the suite until so many workers were killed; the number of runs and of kills."""
    chance, runs, done = random.Random(17), 0, 0
    while done < kills:
        executor = Killing(min(TRIES - 1, kills - done), chance, longest)
        planned = executor.left
        prepared, fill = spread(suite, executor)
        run(prepared, store, Quiet(), fill=fill)
        runs, done = runs + 1, done + planned - executor.left
    return runs, done


@pytest.mark.medium
def test_three_killed_workers_change_nothing(suite, expected, store):
    _, done = killed_runs(suite, store, TRIES - 1, 4.0)
    assert done == TRIES - 1
    for each in store.list_runs(9):
        assert facts(store.url, each.ulid) == expected


@pytest.mark.slow
def test_twenty_killed_workers_change_nothing(tmp_path, store, pytestconfig):
    suite = spread_suite(tmp_path)
    # long enough that most kills hit a worker that decodes
    suite.write_text(suite.read_text().replace("samples: 2", "samples: 40"))
    local = str(tmp_path / "local.db")
    expected = facts(local, local_run(suite, local))
    runs, done = killed_runs(suite, store, 20, 8.0)
    for each in store.list_runs(99):
        assert facts(store.url, each.ulid) == expected
    print(f"{done} workers killed in {runs} runs of {len(expected['requests'])} requests")
    keep(pytestconfig, "kills_workers", {"kills": done, "finished": runs})


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_executor_without_its_packages_is_one_line(name, package, suite, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = invoke("run", str(suite), "--executor", name, "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(
        f"{package} is not installed; install it: pip install 'specaudit[{name}]'"
    )
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slurm", "partition=short"), "--slurm is for --executor slurm; add it, or leave out --slurm"),
        (("--executor", "slurm", "--slurm", "partiton=short"), "did you mean partition?"),
    ],
)
def test_options_of_slurm_that_mean_nothing_are_refused(options, message, suite, tmp_path):
    done = invoke("run", str(suite), "--workers", "2", *options, "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(message)
    assert not (tmp_path / "none.db").exists()
