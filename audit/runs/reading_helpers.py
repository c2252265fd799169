"""Other processes that share the reading of large arms; results do not depend on whether there are any.

The process that judges reads requests itself and hands others to its helpers, whose parts it takes in the order of the
arm. A helper that dies costs time only: its requests are read here. A small arm is read here alone, because a helper
needs a second to start.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Final

from audit.checks import load
from audit.checks.base.interface import Check
from audit.checks.base.shared_reading import Parts, halves_of, parts_of, read_here
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord
from audit.runs.reading_frames import ReadParts, Task, read_frame, write_frame
from engine.core.types import RecordLevel

COMMAND: Final = (sys.executable, "-P", "-m", "audit.runs.reading_process")
MANY_TOKENS: Final = 100_000
"""Tokens of an arm from which on helpers read it too: some seconds of work."""
BATCH: Final = 4096
"""Tokens that are handed over at once, or one request."""
AHEAD: Final = 2
"""Batches that a helper has before it, so that it never waits."""
WAITING: Final = 16
"""Batches, at most, that are being read or wait for those before them."""
MOST_HELPERS: Final = 5
"""More would wait for the process that judges."""


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ReadingHelpers:
    """Helpers that start with the first large arm and end with the `with` block.

    Args:
        count: how many; by default one for each further processor.
        least: tokens of the smallest arm that they read too; `MANY_TOKENS` by default.
    """

    def __init__(self, count: int | None = None, least: int | None = None) -> None:
        self._count = min(processors() - 1, MOST_HELPERS) if count is None else count
        self._least = MANY_TOKENS if least is None else least
        self._helpers: list[_Helper] = []

    def __enter__(self) -> ReadingHelpers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that have begun."""
        return tuple(helper.pid for helper in self._helpers)

    def end(self) -> None:
        """End the helpers."""
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.end()

    def read(self, arm: ArmRecord, checks: Sequence[Check]) -> Generator[Parts, None, None]:
        """Read an arm as `audit.checks.base.shared_reading.read_here` does."""
        registered = all(load(check.name) is check for check in checks)
        if not self._count or not registered or not _is_large(arm, self._least):
            yield from read_here(arm, checks)
            return
        done = False
        try:
            self._begin(Task(replace(arm, requests=(), failed=(), refused=()), tuple(check.name for check in checks)))
            yield from self._shared(arm, checks)
            done = True
        finally:
            # what an unfinished arm left in their pipes is for nobody
            if not done:
                self.end()

    def _begin(self, task: Task) -> None:
        # without a process everything is read here
        with suppress(OSError):
            while len(self._helpers) < self._count:
                self._helpers.append(_Helper())
        for helper in self._helpers:
            helper.write(pickle.dumps(task))

    def _shared(self, arm: ArmRecord, checks: Sequence[Check]) -> Iterator[Parts]:
        ranges, waiting = deque(_batches(arm)), deque[_Batch]()
        while ranges or waiting:
            for helper in self._helpers:
                while ranges and helper.has < AHEAD and len(waiting) < WAITING:
                    waiting.append(_Batch(ranges.popleft(), helper))
                    helper.take(arm, waiting[-1].requests)
            if waiting and waiting[0].ready:
                yield from waiting.popleft().parts(arm, checks)
            elif ranges and len(waiting) < WAITING:
                own = ranges.popleft()
                waiting.append(_Batch(own, None, _read(arm, checks, own)))
            else:
                yield from waiting.popleft().parts(arm, checks)


def _is_large(arm: ArmRecord, least: int) -> bool:
    """True for an arm worth a helper; whole rows take longer to hand over than to read."""
    tokens = 0
    for request in arm.requests:
        if request.trace.header.level is RecordLevel.FULL:
            return False
        tokens += len(request.tokens)
    return tokens >= least


def _batches(arm: ArmRecord) -> Iterator[range]:
    begin, tokens = 0, 0
    for index, request in enumerate(arm.requests):
        tokens += len(request.tokens)
        if tokens >= BATCH or index == len(arm.requests) - 1:
            yield range(begin, index + 1)
            begin, tokens = index + 1, 0


def _read(arm: ArmRecord, checks: Sequence[Check], requests: range) -> Sequence[Parts]:
    halves = halves_of(checks)
    return [parts_of(RequestReading(arm.requests[index], arm), halves) for index in requests]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Requests that a helper has, or that were read here."""

    requests: range
    helper: _Helper | None
    done: Sequence[Parts] = ()

    @property
    def ready(self) -> bool:
        """True if the parts need no wait."""
        return self.helper is None or self.helper.answered

    def parts(self, arm: ArmRecord, checks: Sequence[Check]) -> Sequence[Parts]:
        """The parts of each request; raises what a check raised."""
        answer = None if self.helper is None else self.helper.answer()
        if answer is not None and answer.error is not None:
            raise answer.error
        if answer is not None:
            return answer.parts
        return self.done or _read(arm, checks, self.requests)


class _Helper:
    """One process, which answers in the order in which it was asked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # the packages that this process has
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # Ctrl-C on the terminal is for the process that judges
            start_new_session=True,
        )
        self._given, self._got = 0, 0
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        # it must not wait until its answers are needed
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def has(self) -> int:
        """Batches that it has not answered."""
        return self._given - self._got

    @property
    def answered(self) -> bool:
        """True if the next answer needs no wait."""
        return not self._answers.empty()

    def take(self, arm: ArmRecord, requests: range) -> None:
        """Give it a batch."""
        self._given += 1
        self.write(pickle.dumps([arm.requests[index] for index in requests]))

    def write(self, order: bytes) -> None:
        """Give it an order; one that has ended takes nothing, and its answers say so."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            write_frame(self._process.stdin, order)

    def answer(self) -> ReadParts | None:
        """The next answer; None if the process has ended."""
        frame = self._answers.get()
        if frame is None:
            self._answers.put(None)
            return None
        answer: ReadParts = pickle.loads(frame)
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._thread.join()
        # what it did not read is still to be written
        with suppress(BrokenPipeError), self._process:
            pass

    def _collect(self) -> None:
        assert self._process.stdout is not None
        frame: bytes | None = b""
        while frame is not None:
            frame = read_frame(self._process.stdout)
            self._got += 1
            self._answers.put(frame)
