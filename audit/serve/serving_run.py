"""A run that answers requests as they come, from its beginning in the store to its close, and the server of such a run.

A server and the plug-ins of evaluations share the run. The engine's loop has a thread of its own, apart from the event
loop. An error in the loop ends what runs, with 500, and the loop begins anew with an empty batch. Errors in a row
without an answer between them stop the server.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final

import uvicorn

from audit.serve.app import ApiServer, application
from audit.serve.completion_id import new_ids
from audit.serve.limits import ServeLimits
from audit.serve.meters import ServeMeters
from audit.serve.opened_arm import OpenedArm
from audit.serve.records import NoRecords, RecordSink, RecordWatcher, RunRecords, open_run
from audit.serve.refusals import unavailable
from audit.serve.running_batch import RunningBatch
from audit.serve.served_model import ServedModel
from audit.store import Store
from audit.store.base.ulid import new_ulid
from engine.backends.interface import Serving

MOST_ERRORS: Final = 3


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
    """

    name: str
    limits: ServeLimits
    token: str | None
    version: str


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
        server = ApiServer(run.model, run.batch, run.meters, options.token, ids, options.version, report)
        stack.callback(server.reading.shutdown)
        ready(run.ulid)
        _listen(server, listener, options.limits)


def _listen(server: ApiServer, listener: socket.socket, limits: ServeLimits) -> None:
    options = uvicorn.Config(
        application(server),
        access_log=False,
        lifespan="off",
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=round(limits.drain),
        backlog=2048,
    )

    def ended(_signal: int, _frame: FrameType | None) -> None:
        """Uvicorn raises the signal again after the drain; the process goes on to close its run."""

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(options).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
