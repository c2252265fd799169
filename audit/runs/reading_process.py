"""A process that reads requests of an arm for another one: `python -m audit.runs.reading_process`.

It reads frames (`audit.runs.reading_frames`): a task, then requests of its arm, for which it writes their parts, or the
error that a check raised. It ends with its input, so it outlives nobody.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO, Any

from audit.checks import load
from audit.checks.base.interface import ByRequest
from audit.checks.base.shared_reading import halves_of, parts_of
from audit.evidence.reading import RequestReading
from audit.evidence.records import RequestRecord
from audit.runs.reading_frames import ReadParts, Task, read_frame, write_frame


def main() -> None:
    """Read until the input ends."""
    # whatever a library prints must not stand between the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    waiting: SimpleQueue[bytes | None] = SimpleQueue()
    # the other process must not wait until this one is done with the requests before
    threading.Thread(target=_collect, args=(sys.stdin.buffer, waiting), daemon=True).start()
    reader = _OrderReader()
    while (frame := waiting.get()) is not None:
        answer = reader.answer(pickle.loads(frame))
        if answer is not None:
            write_frame(answers, pickle.dumps(answer))


def _collect(source: IO[bytes], waiting: SimpleQueue[bytes | None]) -> None:
    while (frame := read_frame(source)) is not None:
        waiting.put(frame)
    waiting.put(None)


class _OrderReader:
    """The task at hand."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._halves: Sequence[ByRequest[Any]] = ()

    def answer(self, order: Task | Sequence[RequestRecord]) -> ReadParts | None:
        """Read requests; a task is taken without an answer."""
        if isinstance(order, Task):
            self._task, self._halves = order, halves_of([load(name) for name in order.checks])
            return None
        assert self._task is not None
        try:
            arm, halves = self._task.arm, self._halves
            return ReadParts([parts_of(RequestReading(request, arm), halves) for request in order])
        except Exception as error:  # whatever a check raises is raised where the arm is judged
            return ReadParts((), error)


if __name__ == "__main__":
    main()
