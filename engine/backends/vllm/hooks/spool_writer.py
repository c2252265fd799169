"""A file of frames, written by a thread of its own: the engine does not wait until a step's rows are copied.

Frames are written in order; a reader must flush first. A write failure is stored and reported; later frames are lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from engine.backends.frames import Frame, write

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
        for each in iter(self._waiting.get, None):
            if isinstance(each, threading.Event):
                each.set()
            elif isinstance(each, Frame):
                if self.failure is None:
                    self._write(each)
                self._written += _size(each)

    def _write(self, frame: Frame) -> None:
        try:
            write(self._file, frame if self._reduced is None else self._reduced(frame))
        except Exception as error:  # a flush must not wait for ever
            self.failure = f"the record could not be written: {type(error).__name__}: {error}"


def _size(frame: Frame) -> int:
    return sum(each.nbytes for each in frame.arrays.values())
