"""A pool of actors when nodes leave, on a stand-in for Ray; tests/ray runs workers on a real cluster."""

from __future__ import annotations

from types import SimpleNamespace

from audit.executors.job import WorkPart
from audit.executors.on_ray import RayPool


class Cluster:
    """Runs an actor's part once the actor has a processor; the oldest actors have them."""

    def __init__(self, processors):
        self.processors, self.actors, self.killed = processors, [], []
        self.exceptions = SimpleNamespace(RayError=LookupError)

    def remote(self, **_):
        return lambda _kind: SimpleNamespace(remote=self._actor)

    def _actor(self, _job):
        actor = SimpleNamespace(name=len(self.actors))
        actor.run = SimpleNamespace(remote=lambda part: (actor.name, part.number))
        self.actors.append(actor)
        return actor

    def put(self, job):
        return job

    def cluster_resources(self):
        return {"CPU": float(self.processors)}

    def wait(self, answers, num_returns, timeout):
        alive = [actor.name for actor in self.actors if actor not in self.killed][: self.processors]
        ready = [answer for answer in answers if answer[0] in alive]
        return ready[:1], answers

    def get(self, answer):
        return answer

    def kill(self, actor):
        self.killed.append(actor)


def test_an_idle_actor_gives_its_processor_to_one_that_waits():
    cluster = Cluster(2)
    pool = RayPool(cluster, None, 2)
    pool.submit(WorkPart(0, ()))
    pool.submit(WorkPart(1, ()))
    assert not pool.room()
    assert pool.wait() == (0, 0)
    # a node leaves, and the actor that still has a part is not the one with a processor
    cluster.processors = 1
    assert pool.wait() == (1, 1)
    assert [actor.name for actor in cluster.killed] == [0]
    assert pool.room()


def test_no_idle_actor_ends_while_all_have_a_processor():
    cluster = Cluster(2)
    pool = RayPool(cluster, None, 2)
    for number in (0, 1):
        pool.submit(WorkPart(number, ()))
    assert {pool.wait(), pool.wait()} == {(0, 0), (1, 1)}
    assert cluster.killed == []
    pool.close()
    assert len(cluster.killed) == 2
