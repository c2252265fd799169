"""Recording beside decoding: one worker thread per run, fed through a bounded queue.

Decoding hands over each step and continues; numpy, BLAKE2b and zstd release the interpreter lock while they work.
Steps reach a recorder in the order in which they were handed over, so a trace has the bytes that it would have without
the thread. Nothing is lost: a full queue makes decoding wait, and the worker's exceptions are raised in the thread
that requested the record.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from engine.core.types import Generation, StepRecord
from engine.record.recorder import Recorder

STEPS_AT_ONCE: Final = 16
"""Waking the worker costs more than a step's record, so steps are handed over in batches."""
BYTES_AT_ONCE: Final = 2**20
BATCHES_WAITING: Final = 4
"""Together at most 4 MiB of rows wait, or 4 steps where one step has more than a mebibyte."""


@dataclass(slots=True)
class _Finish:
    """The end of a request: once `done` is set, its trace is written or has failed."""

    recorder: Recorder | None
    generation: Generation
    trace: bytes | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _QueuedStep:
    recorder: Recorder
    record: StepRecord


_Job = _QueuedStep | _Finish
_Batches = queue.Queue[list[_Job] | None]


class RecordWriter:
    """Recorders' work in another thread, begun with the first job; a context manager, whose thread ends with it.

    All methods are called from one thread. Leaving the context waits for the
    worker; it then drops results that were not taken.
    """

    def __init__(self) -> None:
        self._batches: _Batches = queue.Queue(BATCHES_WAITING)
        self._gathered: list[_Job] = []
        self._bytes = 0
        self._pending: deque[_Finish] = deque()
        self._worker = _Worker(self._batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker.ident is not None:
            self._worker.idle = True
            self._batches.put(None)
            self._worker.join()

    def step(self, recorder: Recorder, record: StepRecord) -> None:
        """Hand over one step; waits while the queue is full. Raises Exception: what the worker raised before."""
        self._gathered.append(_QueuedStep(recorder, record))
        self._bytes += _size(record)
        if len(self._gathered) >= STEPS_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
            self._hand_over()

    def finish(self, recorder: Recorder | None, generation: Generation) -> None:
        """Have the request's trace written; `ready` or `rest` give the generation with it.

        Without a recorder the trace stays unchanged.

        Raises:
            Exception: what the worker raised before.
        """
        ending = _Finish(recorder, generation)
        if recorder is None:
            ending.trace = generation.trace
            ending.done.set()
        else:
            self._gathered.append(ending)
            self._hand_over()
        self._pending.append(ending)

    def ready(self) -> Iterator[Generation]:
        """Finished generations whose traces are written, in the order in which they finished.

        Raises:
            Exception: what the worker raised before.
        """
        while self._pending and self._pending[0].done.is_set():
            yield self._next()

    def rest(self) -> Iterator[Generation]:
        """All finished generations that were not taken yet; waits for their traces.

        Raises:
            Exception: what the worker raised, after the generations that were written before.
        """
        while self._pending:
            self._pending[0].done.wait()
            yield self._next()

    def _next(self) -> Generation:
        ending = self._pending.popleft()
        if ending.trace is None:
            assert self._worker.error is not None
            raise self._worker.error
        return replace(ending.generation, trace=ending.trace)

    def _hand_over(self) -> None:
        if self._worker.error is not None:
            raise self._worker.error
        if self._worker.ident is None:
            self._worker.start()
        self._batches.put(self._gathered)
        self._gathered, self._bytes = [], 0


class _Worker(threading.Thread):
    """Does jobs until it gets None. After an error, or once `idle`, it takes jobs without doing them."""

    def __init__(self, batches: _Batches) -> None:
        # A daemon, because the interpreter must not wait at exit for an abandoned run.
        super().__init__(name="record-writer", daemon=True)
        self._batches = batches
        self.idle = False
        self.error: Exception | None = None

    def run(self) -> None:
        """Serve the queue."""
        for batch in iter(self._batches.get, None):
            for job in batch:
                if not self.idle and self.error is None:
                    self._try(job)
                if isinstance(job, _Finish):
                    job.done.set()

    def _try(self, job: _Job) -> None:
        try:
            if isinstance(job, _QueuedStep):
                job.recorder.step(job.record)
            elif job.recorder is not None:
                job.trace = job.recorder.finish(job.generation.finish_reason)
        except Exception as error:
            self.error = error


def _size(record: StepRecord) -> int:
    q, scores = record.proposal.q, record.scores
    return record.logits.nbytes + (0 if q is None else q.nbytes) + (0 if scores is None else scores.nbytes)
