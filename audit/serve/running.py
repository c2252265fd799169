"""Runs a server: the engine's thread, the records' thread and uvicorn, from the first request to the drain."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import uvicorn

from audit.serve.app import ApiServer, application
from audit.serve.completion_id import new_ids
from audit.serve.engine_thread import EngineThread
from audit.serve.limits import ServeLimits
from audit.serve.meters import ServeMeters
from audit.serve.opened_arm import OpenedArm
from audit.serve.records import NoRecords, RunRecords, open_run
from audit.serve.refusals import unavailable
from audit.serve.running_batch import RunningBatch
from audit.serve.served_model import ServedModel
from audit.store import Store
from audit.store.ulid import new_ulid


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
        run = new_ulid() if store is None else store.begin_run(opened.start())
        if store is not None:
            stack.enter_context(open_run(store, run))
        meters = ServeMeters(options.name, opened.wish.plan.gamma)
        batch = RunningBatch(run, options.limits, meters)
        records = None if store is None else RunRecords(store, run, opened.wish.name, _breaking(batch, report))
        if records is not None:
            stack.callback(records.require_written)
            stack.enter_context(records.writing())
        engine = EngineThread(
            opened.serving,
            batch,
            records or NoRecords(),
            options.limits.context,
            report,
            record=store is not None,
        )
        model = ServedModel(options.name, opened.engine, opened.serving, options.limits, opened.fingerprint)
        server = ApiServer(model, batch, meters, options.token, new_ids(run), options.version, report)
        stack.enter_context(_decoding(engine, batch))
        stack.callback(server.reading.shutdown)
        ready(run)
        _listen(server, listener, options.limits)


def _breaking(batch: RunningBatch, report: Callable[[str], None]) -> Callable[[str], None]:
    """What a store does that cannot be written: nothing new is taken in."""

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
