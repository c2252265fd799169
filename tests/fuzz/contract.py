"""The contract of every command on every input: what `broken` finds is a violation.

Exit code 0 to 3; one line for 2; no traceback; nothing half written; bounded time and memory; nothing printed that a
terminal obeys.
"""

from __future__ import annotations

import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from click.testing import Result

from tests.audit.invoke import invoke

SECONDS: Final = 20.0
"""Of processor time, of one command. Typical ones take a hundredth."""
PASSED: Final = 180.0
"""Seconds that may pass, for a command that waits; the machine may be busy."""
MEMORY: Final = 2**29
"""Bytes by which one command may raise the most that the process ever used."""
NOTES: Final = re.compile(r"(running|checking|reading|only the first|store|results) ")
"""Lines on stderr that report progress."""
EXPECTED: Final = ("-wal", "-shm", "-journal")
"""Ends of names of SQLite's own files."""


class TooSlow(BaseException):
    """No part of a command may catch it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` after some seconds of processor time, or after `PASSED`."""

    def stop(number: int, _frame: FrameType | None) -> None:
        busy = f"more than {seconds:g} s of processor time"
        raise TooSlow(busy if number == signal.SIGPROF else f"more than {PASSED:g} s")

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_REAL, PASSED)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Violation:
    """What was wrong, and the place in the code that tells two causes apart."""

    what: str
    place: str = ""

    @property
    def cause(self) -> str:
        """Equal for violations with one cause."""
        return self.place or re.sub(r"[0-9]+|'.*?'", "", self.what)[:60]


def broken(folder: Path, *arguments: str, raw: bool = False) -> Violation | None:
    """Run a command and hold it to the contract; `raw` output is for programs and may hold anything."""
    before = _files(folder)

    def run() -> Violation | None:
        result = invoke(*arguments)
        found = of_result(result, raw=raw)
        if found is None and result.exit_code == 2:
            found = _half_written(before, _files(folder))
        return found

    return guarded(run, " ".join(arguments[:2]))


def guarded(work: Callable[[], Violation | None], name: str) -> Violation | None:
    """The violation of some work, or that it raised, took too long or took too much memory."""
    began, used = time.monotonic(), _peak()
    try:
        with limited(SECONDS):
            found = work()
    except TooSlow as error:
        return Violation(f"{name}: {error}", _place(error))
    except Exception as error:
        return Violation(f"{name}: {type(error).__name__}: {error}"[:300], _place(error))
    grown = _peak() - used
    if found is None and grown > MEMORY:
        return Violation(f"{name}: {grown >> 20} MiB in {time.monotonic() - began:.1f} s", "memory")
    return None if found is None else Violation(f"{name}: {found.what}", found.place)


def of_result(result: Result, *, raw: bool = False) -> Violation | None:
    """The contract on what a command returned and printed."""
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        if isinstance(error, TooSlow):
            raise error
        return Violation(f"{type(error).__name__}: {error}"[:300], _place(error))
    if result.exit_code not in range(4):
        return Violation(f"exit code {result.exit_code}")
    lines = [line for line in result.stderr.splitlines() if not NOTES.match(line)]
    usage = result.stderr.startswith("Usage:")
    if result.exit_code == 2 and not usage and (len(lines) != 1 or not lines[0].startswith("audit: ")):
        return Violation(f"not one line on stderr: {result.stderr[:300]!r}")
    printed = result.stderr if raw else result.stdout + result.stderr
    if not all(line.isprintable() for line in printed.replace("\t", " ").split("\n")):
        odd = next(line for line in printed.split("\n") if not line.isprintable())
        return Violation(f"prints what a terminal obeys: {odd[:200]!r}")
    return None


def _half_written(before: dict[str, Any], after: dict[str, Any]) -> Violation | None:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changed = [name for name in changed if not name.endswith(EXPECTED)]
    return Violation(f"exit code 2, but it wrote {', '.join(changed)}") if changed else None


def _files(folder: Path) -> dict[str, Any]:
    # a store's file changes when its log is folded into it, which writes nothing new
    return {
        path.name: None if path.suffix == ".db" else (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: BaseException) -> str:
    """The last place of our own code in the traceback, which tells two causes apart."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if re.search(r"/(audit|engine|schemas)/", frame.filename)]
    last = (own or list(frames))[-1:]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in last)
