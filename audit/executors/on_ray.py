"""Workers as actors of Ray, on one machine or a cluster: each loads the models once and then answers parts.

Every machine needs this package, and the suite and models under the same paths. A process that has joined a cluster
uses it; otherwise Ray looks for one, by its own rules (`RAY_ADDRESS`), or starts one on this machine.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from audit.errors import UserError, needs
from audit.executors.job import Job, PartLost, PartOutcome, WorkPart
from audit.executors.worker import PartRunner

PAUSE_S: Final = 5.0
"""Seconds between two looks at the cluster while no answer comes."""


@dataclass(slots=True)
class RayWorker:
    """The handle of an actor, the part that it has, and Ray's reference to the answer."""

    actor: Any
    part: WorkPart | None = None
    answer: Any = None


class RayPool:
    """Actors with a processor each, started when there is work for them."""

    def __init__(self, ray: Any, job: Job, workers: int) -> None:
        self._ray = ray
        # an actor that Ray restarted would have lost its part
        self._actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(PartRunner)
        self._job = ray.put(job)
        self._most = workers
        self._workers: list[RayWorker] = []

    def room(self) -> bool:
        """True if a worker is free or may be started."""
        return len(self._workers) < self._most or any(worker.part is None for worker in self._workers)

    def submit(self, part: WorkPart) -> None:
        """Give a part to a free worker; start one if all are busy."""
        worker = next((other for other in self._workers if other.part is None), None) or self._started()
        worker.part, worker.answer = part, worker.actor.run.remote(part)

    def wait(self) -> PartOutcome:
        """The next answer, or the loss of a part with its worker."""
        busy = [other for other in self._workers if other.part is not None]
        while True:
            ready, _ = self._ray.wait([item.answer for item in busy], num_returns=1, timeout=PAUSE_S)
            if ready:
                return self._answer(next(item for item in busy if item.answer == ready[0]))
            if processors(self._ray) < len(self._workers):
                # a node has gone: an actor may wait for a processor, and an idle one has one to give
                idle = [other for other in self._workers if other.part is None]
                for worker in idle[:1]:
                    self._end(worker)

    def _answer(self, worker: RayWorker) -> PartOutcome:
        part, answer = worker.part, worker.answer
        worker.part, worker.answer = None, None
        assert part is not None
        try:
            outcome: PartOutcome = self._ray.get(answer)
            return outcome
        except self._ray.exceptions.RayError as error:
            self._end(worker)
            return PartLost(part, f"with {type(error).__name__}")

    def _end(self, worker: RayWorker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)

    def close(self) -> None:
        """End all actors."""
        for worker in tuple(self._workers):
            self._end(worker)

    def _started(self) -> RayWorker:
        self._workers.append(RayWorker(self._actor.remote(self._job)))
        return self._workers[-1]


def processors(ray: Any) -> int:
    """The processors of the cluster."""
    return int(ray.cluster_resources().get("CPU", 0))


class RayExecutor:
    """Actors of Ray."""

    whole_jobs = False

    def __init__(self) -> None:
        with needs("ray"):
            import ray
        self._ray: Any = ray

    @contextmanager
    def pool(self, job: Job, workers: int) -> Iterator[RayPool]:
        """Workers for a job; they end with the context.

        Raises:
            UserError: the cluster has fewer processors than workers, so some would never start.
        """
        ours = not self._ray.is_initialized()
        if ours:
            self._ray.init(log_to_driver=False, logging_level="warning")
        try:
            count = processors(self._ray)
            if count < workers:
                raise UserError(
                    f"the Ray cluster has {count} processors, and {workers} workers need one each; "
                    "add nodes, or use fewer --workers"
                )
            with closing(RayPool(self._ray, job, workers)) as pool:
                yield pool
        finally:
            if ours:
                self._ray.shutdown()
