"""Workers as processes on this machine: each loads the models once and answers over a pipe until the pipe closes."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from typing import Final

from audit.executors.job import Job, PartLost, PartOutcome, WorkPart
from audit.executors.worker import PartRunner
from engine.core.child import pool_worker

ENDING_S: Final = 10.0
"""Seconds that a process has to end once it was asked to."""


@dataclass(slots=True)
class LocalWorker:
    """A process, this end of its pipe, and the part that it has."""

    process: SpawnProcess
    pipe: connection.Connection
    part: WorkPart | None = None


class LocalPool:
    """Processes that are started when there is work for them."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job = job
        self._most = workers
        # a fork would copy the threads of torch half, and this process has loaded models already
        self._context = get_context("spawn")
        self._workers: list[LocalWorker] = []

    @property
    def processes(self) -> tuple[int, ...]:
        """Numbers of the processes that have work."""
        return tuple(worker.process.pid or 0 for worker in self._workers if worker.part is not None)

    def room(self) -> bool:
        """True if a worker is free or may be started."""
        return len(self._workers) < self._most or any(worker.part is None for worker in self._workers)

    def submit(self, part: WorkPart) -> None:
        """Give a part to a free worker; start one if all are busy."""
        worker = next((other for other in self._workers if other.part is None), None) or self._started()
        worker.part = part
        # a process that has died is found by `wait`
        with contextlib.suppress(OSError):
            worker.pipe.send(part)

    def wait(self) -> PartOutcome:
        """The next answer, or the loss of a part with its worker."""
        busy = [other for other in self._workers if other.part is not None]
        ready = connection.wait([*(item.pipe for item in busy), *(item.process.sentinel for item in busy)])
        worker = next(item for item in busy if item.pipe in ready or item.process.sentinel in ready)
        part, worker.part = worker.part, None
        assert part is not None
        try:
            if worker.pipe.poll():
                outcome: PartOutcome = worker.pipe.recv()
                return outcome
        except (EOFError, OSError):
            # it died in the middle of its answer
            pass
        self._workers.remove(worker)
        return PartLost(part, _ended(worker))

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            _ended(worker)
        self._workers.clear()

    def _started(self) -> LocalWorker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve_parts, args=(theirs, self._job), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(LocalWorker(process, ours))
        return self._workers[-1]


class LocalExecutor:
    """Processes on this machine."""

    whole_jobs = False

    @contextmanager
    def pool(self, job: Job, workers: int) -> Iterator[LocalPool]:
        """Workers for a job; they end with the context, and with this process."""
        with contextlib.closing(LocalPool(job, workers)) as pool:
            yield pool


def _ended(worker: LocalWorker) -> str:
    """Wait for the end of a process; how it ended, in words."""
    worker.process.join(ENDING_S)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode or 0
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def serve_parts(pipe: connection.Connection, job: Job) -> None:
    """Answer parts until the pipe closes."""
    pool_worker()
    runner = PartRunner(job)
    # the coordinator has ended
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(runner.run(pipe.recv()))
