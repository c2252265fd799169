"""An executor starts workers somewhere and gives them parts; it knows nothing of arms, stores and retries."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from audit.executors.job import Job, PartOutcome, WorkPart


class WorkerPool(Protocol):
    """Workers that take parts while they live. A pool replaces a worker that died."""

    def room(self) -> bool:
        """True if a worker is free."""
        ...

    def submit(self, part: WorkPart) -> None:
        """Give a part to a free worker."""
        ...

    def wait(self) -> PartOutcome:
        """The next outcome of a submitted part."""
        ...


class Executor(Protocol):
    """One way to start workers."""

    whole_jobs: bool
    """True if a worker lives for one part only, so that parts should be few."""

    def pool(self, job: Job, workers: int) -> AbstractContextManager[WorkerPool]:
        """Workers for a job, which end with the context.

        Raises:
            UserError: workers cannot be started.
        """
        ...
