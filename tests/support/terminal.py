"""A command on a real pseudo-terminal, and the screen that its user sees (pyte)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

LINES = 40
ROOT = Path(__file__).parents[2]


class TerminalSession:
    """`python -m audit ARGUMENTS` with a terminal as stdin, stdout and stderr."""

    def __init__(self, *arguments: str, width: int = 80, env: Mapping[str, str] | None = None, piped: bool = False):
        self.screen = pyte.HistoryScreen(width, LINES, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._ours, theirs = pty.openpty()
        self._size(width)
        plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "audit", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
            env={**plain, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def until(self, seen: Callable[[str], bool], timeout_s: float = 240.0) -> str:
        """Read until the screen fulfils a condition; returns what it shows."""
        end = time.monotonic() + timeout_s
        while not seen(self.text()):
            self._require_time(end)
            if not self._read(0.2) and self.process.poll() is not None:
                break
        return self.text()

    def end(self, timeout_s: float = 240.0) -> int:
        """Read to the end; returns the exit code."""
        end = time.monotonic() + timeout_s
        while self._read(0.2) or self.process.poll() is None:
            self._require_time(end)
        os.close(self._ours)
        return self.process.wait()

    def resize(self, width: int) -> None:
        """Change the width of the window."""
        self.screen.resize(columns=width)
        self._size(width)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._ours, b"\x03")

    def text(self) -> str:
        """What the screen shows, with the lines that left it at the top."""
        width = self.screen.columns
        above = ["".join(line[i].data for i in range(width)).rstrip() for line in self.screen.history.top]
        return "\n".join([*above, *(line.rstrip() for line in self.screen.display)]).rstrip()

    def colours(self, word: str) -> set[str]:
        """The colours in which a word stands on the screen."""
        return {
            self.screen.buffer[row][at].fg
            for row, line in enumerate(self.screen.display)
            for at in range(len(line))
            if line.startswith(word, at)
        }

    def _require_time(self, end: float) -> None:
        if time.monotonic() >= end:
            self.process.kill()
            self.process.wait()
            raise AssertionError(self.text())

    def _size(self, width: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))

    def _read(self, wait_s: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], wait_s)
        try:
            part = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            return False
        self.raw += part
        self._stream.feed(part)
        return bool(part)
