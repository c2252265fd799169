"""A file of frames, written by a thread of its own: a step of the engine does not wait until its rows are copied away.

What is put down is written in order. Whoever wants to read flushes first. A
failure to write is kept and told; frames after it are lost.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from engine.backends.vllm.frames import Frame, write

WAITING: Final = 64
"""Frames that may wait; a disk that is slower than the engine holds it up from then on, not the memory."""


class SpoolWriter:
    """One file, from its opening until `close`."""

    def __init__(self, path: str) -> None:
        self.failure: str | None = None
        self._waiting: queue.SimpleQueue[Frame | threading.Event | None] = queue.SimpleQueue()
        self._file = open(path, "ab")  # noqa: SIM115 - until `close`
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="specaudit-spool")
        self._thread.start()

    def put(self, frame: Frame) -> None:
        """Have a frame written; its arrays must not change any more."""
        if self._waiting.qsize() >= WAITING:
            self.flush()
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
            elif isinstance(each, Frame) and self.failure is None:
                self._write(each)

    def _write(self, frame: Frame) -> None:
        try:
            write(self._file, frame)
        except Exception as error:  # whoever flushes must not wait for ever
            self.failure = f"the record could not be written: {type(error).__name__}: {error}"
