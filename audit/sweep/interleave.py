"""Times of several jobs, interleaved round by round in one process.

A busy machine slows whole rounds, so callers compare jobs of the same round with
each other.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Clock = Callable[[], float]
"""Seconds from an arbitrary start: wall time, or the processor time of this process."""


@dataclass(frozen=True, slots=True)
class TimedJob(Generic[T]):
    """One run of one job: round from 0, seconds by the clock, and what the job returned."""

    round: int
    job: str
    seconds: float
    result: T


def interleaved(
    jobs: Mapping[str, Callable[[], T]], rounds: int, clock: Clock = time.perf_counter
) -> Iterator[TimedJob[T]]:
    """Run every job once as warm-up, then once per round; each round begins with another job.

    Garbage collection runs between jobs, never during one.
    """
    for job in jobs.values():
        job()
    names = list(jobs)
    for index in range(rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            yield _timed(index, name, jobs[name], clock)


def _timed(index: int, name: str, job: Callable[[], T], clock: Clock) -> TimedJob[T]:
    gc.collect()
    with _no_garbage_collection():
        began = clock()
        result = job()
        seconds = clock() - began
    return TimedJob(index, name, seconds, result)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
