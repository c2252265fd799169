"""A file of frames, written by a thread of its own: the engine does not wait until a step's rows are copied.

Frames are written in order; a reader must flush first. A write failure is stored and reported; later frames are lost.

Reduces a step's rows in vLLM's worker, before they leave it.

The writer's thread calls it, so the engine does not wait for it. It follows every request's tokens, because penalties
and forbidden words depend on those before a row.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from engine.backends.vllm.decisions import decided
from engine.backends.vllm.spool import SpooledRows, arrays_of, head_of, split
from engine.backends.vllm.worker_terms import WorkerTerms
from engine.core.child import Frame, write
from engine.record.foreign.steps import ForeignStep, step_record
from engine.record.rows.reduction import columns_of, reduce

WAITING: Final = 64
"""Frames that may wait; beyond it, a slow writer delays the engine instead of filling the memory."""
MOST_BYTES: Final = 2**28
"""Bytes of rows that may wait."""


class SpoolWriter:
    """One file, from its opening until `close`.

    Args:
        path: the file.
        reduced: what the thread makes of every frame before it writes it.
    """

    def __init__(self, path: str, reduced: Callable[[Frame], Frame] | None = None) -> None:
        self.failure: str | None = None
        self._reduced = reduced
        self._given = self._written = 0
        self._waiting: queue.SimpleQueue[Frame | threading.Event | None] = queue.SimpleQueue()
        self._file = open(path, "ab")  # noqa: SIM115 - until `close`
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="specaudit-spool")
        self._thread.start()

    def put(self, frame: Frame) -> None:
        """Queue a frame for writing; its arrays must no longer change."""
        if self._waiting.qsize() >= WAITING or self._given - self._written >= MOST_BYTES:
            self.flush()
        self._given += _size(frame)
        self._waiting.put(frame)

    def flush(self) -> None:
        """Wait until all frames are in the file."""
        reached = threading.Event()
        self._waiting.put(reached)
        reached.wait()

    def close(self) -> None:
        """Write the rest and close the file."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()

    def _write_all(self) -> None:
        for item in iter(self._waiting.get, None):
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, Frame):
                if self.failure is None:
                    self._write(item)
                self._written += _size(item)

    def _write(self, frame: Frame) -> None:
        try:
            write(self._file, frame if self._reduced is None else self._reduced(frame))
        except Exception as error:  # a flush must not wait for ever
            self.failure = f"the record could not be written: {type(error).__name__}: {error}"


def _size(frame: Frame) -> int:
    return sum(array.nbytes for array in frame.arrays.values())


class Reducer:
    """The requests of one call.

    Args:
        terms: by the names of their answers.
    """

    def __init__(self, terms: Mapping[str, WorkerTerms]) -> None:
        self._terms = terms
        self._histories: dict[str, list[int]] = {}
        self._steps: dict[str, int] = {}

    def reduced(self, frame: Frame) -> Frame:
        """The same step with columns for rows; samples that nobody asked for are left out."""
        requests, steps = [], []
        for head, (name, seen) in zip(frame.header["requests"], split(frame), strict=True):
            terms = self._terms.get(name.rpartition("-")[0])
            if terms is None:
                continue
            offered = replace(seen.step, forbidden=tuple(head.get("offered", ())))
            step = self._step(name, replace(seen, step=offered), terms)
            told = {key: value for key, value in head.items() if key not in ("behind", "offered")}
            requests.append(told | ({} if step is None else {"reduced": head_of(step)}))
            steps += [] if step is None else [step]
        return Frame({**frame.header, "requests": requests}, arrays_of(steps))

    def _step(self, name: str, seen: SpooledRows, terms: WorkerTerms) -> ForeignStep | None:
        """One request's step; None if its rows cannot be read without a mask."""
        history = self._histories.setdefault(name, list(terms.prompt))
        index = self._steps[name] = self._steps.get(name, -1) + 1
        step = decided(seen, terms.reading)
        record = None if step.logits is None else step_record(index, step, history, terms)
        history += step.emitted
        return None if record is None else replace(step, columns=columns_of(reduce(terms, [record])))
