"""Forked processes for tests: they start at once, because they share what the test has imported."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def forked(work: Callable[..., Any], *arguments: Any) -> int:
    """The number of a process that does the work and ends with 0, or with 1 and a traceback."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return number


def ended(number: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def kill(number: int) -> None:
    """End a process without a chance to clean up, and wait for its end; nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)


@contextmanager
def until_killed(work: Callable[[Callable[[], None]], Any]) -> Iterator[int]:
    """A process inside `work`, which calls its argument as soon as it is ready; killed at the end, if not before."""
    reading, writing = os.pipe()
    number = forked(work, lambda: os.write(writing, b"1"))
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"1"
        yield number
    finally:
        os.close(reading)
        kill(number)
