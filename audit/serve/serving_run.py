"""A run that answers requests as they come, from its beginning in the store to its close, and the server of such a run.

A server and the plug-ins of evaluations share the run. The engine's loop has a thread of its own, apart from the event
loop. An error in the loop ends what runs, with 500, and the loop begins anew with an empty batch. Errors in a row
without an answer between them stop the server.
"""

import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final, Protocol

import uvicorn

from audit.errors import CannotDecide, UserError
from audit.serve.app import ApiServer, application
from audit.serve.completion_id import new_ids, place_of
from audit.serve.limits import ServeLimits
from audit.serve.meters import ServeMeters
from audit.serve.opened_arm import OpenedArm
from audit.serve.refusals import unavailable
from audit.serve.request_log import RequestLog
from audit.serve.running_batch import RunningBatch
from audit.serve.served_model import ServedModel
from audit.store import RunStatus, Store
from audit.store.base.ulid import new_ulid
from audit.store.writing.request_writer import NewRequest
from engine.backends.interface import Serving
from engine.core.types import Generation

MOST_ERRORS: Final = 3
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
        self._ended.put(NewRequest(arm or self._arm, domain, *place_of(generation.request.id), generation))

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
        """Check that every answer is on record. Raises CannotDecide: the store failed."""
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


class EngineThread(threading.Thread):
    """Decodes a batch until it is closed and empty."""

    def __init__(
        self,
        engine: Serving,
        batch: RunningBatch,
        records: RecordSink,
        longest: int,
        report: Callable[[str], None],
        *,
        record: bool,
    ) -> None:
        super().__init__(name="engine-loop", daemon=True)
        self._engine, self._batch, self._records = engine, batch, records
        self._longest, self._report, self._record = longest, report, record
        self._errors = 0

    def run(self) -> None:
        """Decode."""
        while not self._decoded():
            pass

    def _decoded(self) -> bool:
        """True once nothing comes any more."""
        try:
            for generation in self._engine.serve(self._batch, self._longest, record=self._record):
                self._errors = 0
                self._records.add(self._batch.domain_of(generation.request.id), generation)
        except Exception as error:  # whatever a request makes the engine raise must not end the others' server
            return self._after(error)
        return True

    def _after(self, error: Exception) -> bool:
        self._errors += 1
        line = f"{type(error).__name__}: {error}"
        self._report(f"the engine failed: {line}")
        if self._errors < MOST_ERRORS:
            self._batch.fail(f"the engine failed: {line}")
            return False
        self._batch.close(unavailable(f"the engine failed {MOST_ERRORS} times in a row: {line}"))
        self._batch.fail(f"the engine failed: {line}", waiting=True)
        return True


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A run that takes requests in: through `batch`, with `model` to make them."""

    ulid: str
    model: ServedModel
    batch: RunningBatch
    meters: ServeMeters
    records: RecordSink


@contextmanager
def serving_run(
    opened: OpenedArm,
    name: str,
    limits: ServeLimits,
    store: Store | None,
    report: Callable[[str], None],
    watcher: RecordWatcher | None = None,
) -> Iterator[ServingRun]:
    """Decode while the body runs; at its end, what is left, then write every record and close the run.

    `name` is the model's. Without a store nothing is recorded. `report` gets lines about failures of the engine and of
    the store, `watcher` hears which records are in the store, in the thread that writes.

    Raises:
        CannotDecide: a record could not be written.
    """
    with ExitStack() as stack:
        run = new_ulid() if store is None else store.begin_run(opened.start())
        if store is not None:
            stack.enter_context(open_run(store, run))
        meters = ServeMeters(name, opened.wish.plan.gamma)
        batch = RunningBatch(run, limits, meters)
        records: RecordSink = NoRecords()
        if store is not None:
            kept = RunRecords(store, run, opened.wish.name, _breaking(batch, report), watcher)
            stack.callback(kept.require_written)
            stack.enter_context(kept.writing())
            records = kept
        engine = EngineThread(opened.serving, batch, records, limits.context, report, record=store is not None)
        model = ServedModel(name, opened.engine, opened.serving, limits, opened.fingerprint)
        stack.enter_context(_decoding(engine, batch))
        yield ServingRun(run, model, batch, meters, records)


def _breaking(batch: RunningBatch, report: Callable[[str], None]) -> Callable[[str], None]:
    """Stops new requests when the store cannot be written."""

    def broken(line: str) -> None:
        report(line)
        batch.close(unavailable(line))

    return broken


@contextmanager
def _decoding(engine: EngineThread, batch: RunningBatch) -> Iterator[None]:
    """Decode while the body runs, and what is left at its end."""
    engine.start()
    try:
        yield
    finally:
        batch.close()
        engine.join()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server runs.

    name: of the model, for clients.
    token: of the clients; None lets every program of this machine in.
    log: where the bodies of accepted requests go beside the store, or None.
    """

    name: str
    limits: ServeLimits
    token: str | None
    version: str
    log: RequestLog | None = None


def serve(
    opened: OpenedArm,
    options: ServeOptions,
    store: Store | None,
    listener: socket.socket,
    report: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Answer requests until SIGTERM or Ctrl-C, then let running ones end; `ready` gets the id of the run.

    Raises:
        CannotDecide: a record could not be written.
    """
    with ExitStack() as stack:
        run = stack.enter_context(serving_run(opened, options.name, options.limits, store, report))
        ids = new_ids(run.ulid)
        server = ApiServer(
            run.model, run.batch, run.meters, options.token, ids, options.version, report, log=options.log
        )
        stack.callback(server.shutdown)
        _listen(server, listener, options.limits, lambda: ready(run.ulid))


def _listen(server: ApiServer, listener: socket.socket, limits: ServeLimits, ready: Callable[[], None]) -> None:
    options = uvicorn.Config(
        application(server),
        access_log=False,
        lifespan="off",
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=round(limits.drain),
        backlog=2048,
    )

    listening = uvicorn.Server(options)

    def ended(_signal: int, _frame: FrameType | None) -> None:
        """A signal before uvicorn listens; it raises it again after the drain, and the process closes its run."""
        listening.should_exit = True

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with suppress(KeyboardInterrupt):
            # whoever reads this may send a signal at once
            ready()
            listening.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
