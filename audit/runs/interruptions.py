"""The ends of a run before its time: the user's stop, an engine's error, a failure of the store.

Each leaves an event in the run, where the store still accepts one, and one line with the command that continues.
"""

import contextlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from audit.errors import CannotDecide, UserError
from audit.store import RunStatus, Store
from audit.store.base.failures import Cause, StoreFailure
from engine.core.errors import EngineError

AGAIN: Final = "a run with text: off cannot be continued; run its suite again"


class Interrupted(Exception):
    """The user stopped the run named `run`, which can be resumed."""

    def __init__(self, run: str, fix: str) -> None:
        super().__init__(f"interrupted; {fix}")
        self.run = run


def resume_command(run: str, store: str) -> str:
    """Command that continues a run of the store with this URL."""
    return f"audit resume {run} --store {shlex.quote(store)}"


@contextmanager
def stops_recorded(store: Store, run: str, *, resumable: bool = True) -> Iterator[None]:
    """Record why the work inside ended early.

    Args:
        store: where the run is.
        run: its id.
        resumable: whether the message may name the command that continues the run.

    Raises:
        Interrupted: the user stopped the run.
        UserError: the engine cannot continue.
        StoreFailure: the store cannot be written or read; the message names the resume command.
    """
    try:
        yield
    except KeyboardInterrupt:
        _note(store, run, RunStatus.INTERRUPTED, "stopped by the user")
        fix = f"continue with: {resume_command(run, store.url)}" if resumable else AGAIN
        raise Interrupted(run, fix) from None
    except EngineError as error:
        _note(store, run, RunStatus.FAILED, str(error))
        raise UserError(f"run {run} failed: {error}") from error
    except StoreFailure as failed:
        _note(store, run, RunStatus.INTERRUPTED, failed.cause.what)
        fix = f"{failed.cause.fix}, then: {resume_command(run, store.url)}" if resumable else AGAIN
        state = f"; {_safe(store, run)}" if resumable else ""
        raise StoreFailure(store.url, Cause(f"{failed.cause.what}{state}", fix)) from failed


def _note(store: Store, run: str, status: RunStatus, reason: str) -> None:
    """Record the end; a store that fails leaves the run as `running`, which can be resumed as well."""
    with contextlib.suppress(CannotDecide, UserError):
        store.set_status(run, status, reason)


def _safe(store: Store, run: str) -> str:
    try:
        count = len(store.finished(run))
    except (CannotDecide, UserError):
        return "the finished requests are safe"
    return f"{count} finished request{' is' if count == 1 else 's are'} safe"
