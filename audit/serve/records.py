"""A server's run in the store: its beginning, its requests as they end, its close.

Requests are written in a thread of their own, all that wait in one transaction. A store that cannot be written stops
the server: it gives no answer that it cannot record.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from audit.errors import CannotDecide, UserError
from audit.serve.completion_id import place_of
from audit.store import RunStatus, Store
from audit.store.writing.request_writer import NewRequest
from engine.core.types import Generation

WAITING: Final = 256
"""Most ended requests that wait to be written; decoding waits for the rest."""
AT_ONCE: Final = 64


class RecordSink(Protocol):
    """Where ended requests go."""

    def add(self, domain: str, generation: Generation, arm: str | None = None) -> None:
        """Take an ended request with its record; `arm` is another one of the run than that which is served."""


class RecordWatcher(Protocol):
    """Who hears, in the thread that writes, what becomes of records."""

    def written(self, request: str) -> None:
        """The record of a request, by the engine's name, is in the store."""

    def lost(self, why: str) -> None:
        """No record is written any more."""


class NoRecords:
    """For a server without a store."""

    def add(self, domain: str, generation: Generation, arm: str | None = None) -> None:
        """Nothing."""


class RunRecords:
    """Writes the requests of one run."""

    def __init__(
        self, store: Store, run: str, arm: str, broken: Callable[[str], None], watcher: RecordWatcher | None = None
    ) -> None:
        self._store, self._run, self._arm = store, run, arm
        self._broken, self._watcher = broken, watcher
        self._ended: queue.Queue[NewRequest | None] = queue.Queue(WAITING)
        # daemon thread: a plug-in closes its run at exit, after non-daemon threads are joined
        self._writer = threading.Thread(target=self._write, name="run-records", daemon=True)
        self._failed = False

    def add(self, domain: str, generation: Generation, arm: str | None = None) -> None:
        """Queue an ended request; waits while the queue is full."""
        place = place_of(generation.request.id)
        self._ended.put(NewRequest(arm or self._arm, domain, place.completion, place.choice, generation))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write while the body runs, and everything that is left at its end."""
        self._writer.start()
        try:
            yield
        finally:
            self._ended.put(None)
            self._writer.join()

    def require_written(self) -> None:
        """Check that every answer is on record.

        Raises:
            CannotDecide: the store failed.
        """
        if self._failed:
            raise CannotDecide(f"run {self._run}: the store failed, and the answers after that are not on record")

    def _write(self) -> None:
        more = True
        while more:
            batch, more = self._gathered()
            if batch and not self._failed:
                self._try(batch)

    def _try(self, batch: list[NewRequest]) -> None:
        try:
            self._store.add_requests(self._run, batch)
        except (CannotDecide, UserError) as error:
            self._failed = True
            line = f"the store cannot be written: {error}"
            self._broken(line)
            if self._watcher is not None:
                self._watcher.lost(line)
            return
        if self._watcher is not None:
            for request in batch:
                self._watcher.written(request.generation.request.id)

    def _gathered(self) -> tuple[list[NewRequest], bool]:
        """Waits for a request, and takes what else is there; False at the end."""
        batch: list[NewRequest] = []
        result = self._ended.get()
        while result is not None:
            batch.append(result)
            if len(batch) == AT_ONCE or self._ended.empty():
                return batch, True
            result = self._ended.get()
        return batch, False


@contextmanager
def open_run(store: Store, run: str) -> Iterator[None]:
    """Hold a run that has begun, and close it at the end: interrupted after an error, else finished.

    A served run has no verdicts yet, so its exit code says that nothing is decided.
    """
    with store.hold(run):
        try:
            yield
        except BaseException as error:
            store.set_status(run, RunStatus.INTERRUPTED, f"{type(error).__name__}: {error}")
            raise
        store.finish_run(run, RunStatus.FINISHED, 3)
