"""The child's side of an engine in a process of its own: frames on stdin and stdout, and an end with its parent.

Every process of the engine is in this one's group: when stdin ends, because the parent closed it or died, the group
ends. What the engine prints goes to stderr. Imports neither torch nor any engine.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeAlias

from engine.backends.frames import Frame, TruncatedStream, read, write

Inbox: TypeAlias = "queue.SimpleQueue[Frame | None]"


class ChildDriver:
    """The loop of one engine: its start, then answers to messages until stdin ends."""

    def __init__(self, inbox: Inbox, out: BinaryIO) -> None:
        self._inbox, self._out = inbox, out

    def start(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start the engine; its facts."""
        raise NotImplementedError

    def answer(self, message: Mapping[str, Any]) -> None:
        """Answer one message."""
        raise NotImplementedError

    def say(self, **header: Any) -> None:
        """One message to the parent."""
        write(self._out, Frame(header))

    def serve(self) -> None:
        """Start, then answer until stdin ends."""
        first = self._inbox.get()
        if first is None:
            return
        try:
            self.say(op="started", facts=dict(self.start(first.header)))
        except Exception as error:
            self.say(op="failed", kind=type(error).__name__, message=one_line(error))
            return
        for frame in iter(self._inbox.get, None):
            self.answer(frame.header)
            self.say(op="done")


def one_line(error: BaseException) -> str:
    """An error's words without line breaks; its name if it has none."""
    return " ".join(str(error).split())[:600] or type(error).__name__


def run_child(serve: Callable[[Inbox, BinaryIO], None]) -> None:
    """Serve until stdin ends."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    serve(inbox, out)
    out.close()
    _end()


def _listen(stream: BinaryIO, inbox: Inbox) -> None:
    """Forward messages; after the last one, end the process group even during a generation."""
    try:
        for frame in _frames(stream):
            inbox.put(frame)
    finally:
        _end()


def _end() -> None:
    """End this process and all engine processes, which share its group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _frames(stream: BinaryIO) -> Iterator[Frame]:
    while True:
        try:
            frame = read(stream)
        except TruncatedStream:
            return
        if frame is None:
            return
        yield frame
