"""Other processes that share the reading of large arms; results do not depend on whether there are any.

The process that judges reads requests itself and hands others to its helpers, whose parts it takes in the order of the
arm. A helper that dies costs time only: its requests are read here. A small arm is read here alone, because a helper
needs a second to start.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final, Self, TypeAlias

from audit.checks import load
from audit.checks.base.interface import Check
from audit.checks.base.shared_reading import Parts, halves_of, parts_of, read_here
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord, RequestRecord
from engine.core.child import end_pool, pool_worker
from engine.core.types import RecordLevel

MANY_TOKENS: Final = 100_000
"""Tokens of an arm from which on helpers read it too: some seconds of work."""
BATCH: Final = 4096
"""Tokens that are handed over at once, or one request."""
AHEAD: Final = 2
"""Batches, for each helper, that it has before it, so that it never waits."""
WAITING: Final = 16
"""Batches, at most, that are being read or wait for those before them."""
MOST_HELPERS: Final = 5
"""More would wait for the process that judges."""
_Reading: TypeAlias = "Future[Sequence[Parts]]"


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ReadingHelpers:
    """Helpers that start with the first large arm and end with the `with` block. After a death there are none.

    Args:
        count: how many; by default one for each further processor.
        least: tokens of the smallest arm that they read too; `MANY_TOKENS` by default.
    """

    def __init__(self, count: int | None = None, least: int | None = None) -> None:
        self._count = min(processors() - 1, MOST_HELPERS) if count is None else count
        self._least = MANY_TOKENS if least is None else least
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the helpers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            end_pool(pool)

    def read(self, arm: ArmRecord, checks: Sequence[Check]) -> Generator[Parts, None, None]:
        """Read an arm as `audit.checks.base.shared_reading.read_here` does."""
        registered = all(load(check.name) is check for check in checks)
        if not self._count or not registered or not _is_large(arm, self._least):
            yield from read_here(arm, checks)
            return
        done = False
        try:
            yield from self._shared(arm, checks)
            done = True
        finally:
            # what an unfinished arm left to read is for nobody
            if not done:
                self.end()

    def _shared(self, arm: ArmRecord, checks: Sequence[Check]) -> Iterator[Parts]:
        bare, names = replace(arm, requests=(), failed=(), refused=()), tuple(check.name for check in checks)
        ranges, waiting = deque(_batches(arm)), deque[_Batch]()
        while ranges or waiting:
            while ranges and len(waiting) < WAITING and sum(not batch.ready for batch in waiting) < AHEAD * self._count:
                requests = ranges.popleft()
                waiting.append(_Batch(requests, self._given(bare, names, [arm.requests[index] for index in requests])))
            if ranges and len(waiting) < WAITING and not (waiting and waiting[0].ready):
                own = ranges.popleft()
                waiting.append(_Batch(own, None, _read(arm, checks, own)))
            else:
                yield from waiting.popleft().parts(arm, checks)

    def _given(self, bare: ArmRecord, names: Sequence[str], requests: Sequence[RequestRecord]) -> _Reading | None:
        """A batch handed over; None if no helper takes it."""
        try:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self._count, get_context("spawn"), initializer=pool_worker)
            return self._pool.submit(read_there, bare, names, requests)
        except (OSError, BrokenProcessPool):
            self._count = 0
            return None


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
    reading: _Reading | None
    done: Sequence[Parts] = ()

    @property
    def ready(self) -> bool:
        """True if the parts need no wait."""
        return self.reading is None or self.reading.done()

    def parts(self, arm: ArmRecord, checks: Sequence[Check]) -> Sequence[Parts]:
        """The parts of each request; raises what a check raised."""
        try:
            if self.reading is not None:
                return self.reading.result()
        except (BrokenProcessPool, CancelledError):
            pass
        return self.done or _read(arm, checks, self.requests)


def read_there(bare: ArmRecord, names: Sequence[str], requests: Sequence[RequestRecord]) -> Sequence[Parts]:
    """In a helper: the parts of some requests of an arm, which is `bare` without them."""
    halves = halves_of([load(name) for name in names])
    return [parts_of(RequestReading(request, bare), halves) for request in requests]
