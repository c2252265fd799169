"""Runs a server: the engine's thread, the records' thread and uvicorn, from the first request to the drain."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType

import uvicorn

from audit.serve.app import ApiServer, application
from audit.serve.completion_id import new_ids
from audit.serve.limits import ServeLimits
from audit.serve.opened_arm import OpenedArm
from audit.serve.serving_run import serving_run
from audit.store import Store


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
