"""The engine's side of a process of its own: its loop, which a backend's driver fills.

Imports neither torch nor any engine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, Final

from engine.core.child import Frame, Inbox, serve_parent, write

ALIVE_EVERY: Final = 2.0
"""Seconds between two heartbeats while requests run."""


class EngineDriver:
    """The loop of one engine: its start, then answers to messages until stdin ends."""

    def __init__(self, inbox: Inbox, out: BinaryIO) -> None:
        self._inbox, self._out = inbox, out
        self._said = time.monotonic()

    def start(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start the engine; its facts."""
        raise NotImplementedError

    def generate(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Answer the requests of one message, one after another; the library's exceptions concern each alone."""
        for request in requests:
            self.guarded([request["id"]], partial(self.answer_one, request))

    def answer_one(self, request: Mapping[str, Any]) -> None:
        """Answer one request, where the engine runs one at a time."""
        raise NotImplementedError

    def options(self, speculative: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of speculation as the engine keeps them."""
        raise NotImplementedError

    def answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one message; what its last frame says besides."""
        if message["op"] == "options":
            self.guarded([""], lambda: self.say(op="options", kept=dict(self.options(message["speculative"]))))
        else:
            self.generate(message["requests"])
        return {}

    def guarded(self, names: Sequence[str], act: Callable[[], None]) -> None:
        """Do something; the library's exceptions concern the named requests alone."""
        try:
            act()
        except Exception as error:
            for name in names:
                self.say(op="refused", id=name, message=f"{type(error).__name__}: {one_line(error)}")

    def say(self, arrays: Mapping[str, Any] | None = None, **header: Any) -> None:
        """One message to the parent."""
        self._said = time.monotonic()
        write(self._out, Frame(header, arrays or {}))

    def beat(self) -> None:
        """Say that the engine works, now and then."""
        if time.monotonic() - self._said > ALIVE_EVERY:
            self.say(op="alive")

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
            try:
                self.say(op="done", **self.answer(frame.header))
            except Exception as error:  # after any exception this engine can serve no further request
                self.say(op="died", kind=type(error).__name__, message=one_line(error))
                return


def one_line(error: BaseException) -> str:
    """An error's words without line breaks; its name if it has none."""
    return " ".join(str(error).split())[:600] or type(error).__name__


def microseconds(begun: float) -> int:
    """The time since a reading of `time.perf_counter`."""
    return round((time.perf_counter() - begun) * 1e6)


def run_driver(kind: type[EngineDriver]) -> None:
    """Serve until stdin ends."""
    serve_parent(lambda inbox, out: kind(inbox, out).serve())
