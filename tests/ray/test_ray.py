"""Workers on a cluster of Ray with several nodes: the content of one process, also when workers and nodes die."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from threading import Thread

import pytest

from audit.api.running import Quiet
from audit.executors.job import job_of
from audit.executors.on_ray import RayExecutor
from audit.executors.spread import TRIES, Spread
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.allowances import NOTHING
from audit.suite.loader import load_suite
from tests.audit.executors.spread_suites import facts, newest
from tests.audit.invoke import invoke
from tests.ray.conftest import NODES

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("workers", [1, 2, NODES])
def test_actors_give_the_run_of_one_process(workers, cluster, suite, expected, tmp_path):
    store = str(tmp_path / "ray.db")
    done = invoke(
        *("run", str(suite), "--executor", "ray", "--workers", str(workers), "--store", store),
        *("--results", str(tmp_path / "results.json")),
    )
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(store, newest(store)) == expected


def test_more_workers_than_processors_are_refused(cluster, suite, tmp_path):
    store = str(tmp_path / "ray.db")
    done = invoke("run", str(suite), "--executor", "ray", "--workers", "64", "--store", store)
    assert done.exit_code == 2
    assert f"the Ray cluster has {NODES} processors, and 64 workers need one each" in done.stderr


class Disturbed(RayExecutor):
    """Does something to a busy worker at random moments, until it was done a number of times."""

    def __init__(self, times, disturb):
        super().__init__()
        self.left, self.disturb, self.going = times, disturb, True

    @contextmanager
    def pool(self, job, workers):
        with super().pool(job, workers) as pool:
            thread = Thread(target=self._work, args=(pool,), daemon=True)
            thread.start()
            yield pool
            self.going = False
            thread.join()

    def _work(self, pool):
        chance = random.Random(17)
        while self.going and self.left:
            time.sleep(chance.uniform(0.5, 5.0))
            busy = [each for each in pool._workers if each.part is not None]
            if busy and self.going:
                self.left -= self.disturb(chance.choice(busy))


def disturbed_run(suite, folder, executor):
    prepared = prepare(load_suite(suite))
    with Store.open(str(folder / "ray.db"), create=True) as store:
        fill = Spread(prepared, job_of(prepared, 1, NOTHING), executor, 2).fill
        return facts(store.url, run(prepared, store, Quiet(), fill=fill).run)


def test_killed_actors_change_nothing(cluster, suite, expected, tmp_path):
    import ray

    def kill(worker):
        ray.kill(worker.actor)
        return True

    executor = Disturbed(TRIES - 1, kill)
    assert disturbed_run(suite, tmp_path, executor) == expected
    assert executor.left < TRIES - 1


def test_a_node_that_dies_with_its_worker_changes_nothing(cluster, suite, expected, tmp_path):
    from ray._private.state import actors

    def remove_node(worker):
        place = actors(worker.actor._actor_id.hex())["Address"]["NodeID"]
        # the driver is a process of the head
        found = [node for node in cluster.worker_nodes if node.node_id == place]
        for node in found:
            cluster.remove_node(node, allow_graceful=False)
        return bool(found)

    executor = Disturbed(1, remove_node)
    assert disturbed_run(suite, tmp_path, executor) == expected
    assert executor.left == 0
