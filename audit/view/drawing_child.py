"""The server's end of a process that draws: begun at its first chart, and begun again where it died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from audit.report.html.charts import Chart


class NotDrawn(Exception):
    """A chart that cannot be drawn."""


class ProcessEnded(Exception):
    """The process is gone; the message says how."""


class DrawingChild:
    """One process, of which one thread at a time may ask for a drawing."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process, if it has begun."""
        return None if self._process is None else self._process.pid

    def svg(self, chart: Chart) -> Markup:
        """The drawing of a chart; a process that has died since its last one gets a successor.

        Raises:
            ProcessEnded: none can be started.
            NotDrawn: the chart cannot be drawn, or ended the successor.
        """
        answer = self._answer(json.dumps(asdict(chart)))
        if "failed" in answer:
            raise NotDrawn(answer["failed"])
        return Markup(answer["svg"])

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # what it did not read is still to be written
            with suppress(BrokenPipeError), process:
                pass

    def _answer(self, question: str) -> Mapping[str, Any]:
        if self._process is not None:
            with suppress(ProcessEnded):
                return _exchange(self._process, question)
        self.end()
        process = self._begun()
        try:
            return _exchange(process, question)
        except ProcessEnded as error:
            raise NotDrawn(f"the drawing process {error}") from error

    def _begun(self) -> subprocess.Popen[str]:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # the library's warnings hold texts of the store
                stderr=subprocess.DEVNULL,
                text=True,
                # the packages that this process has
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                # Ctrl-C on the terminal is for the server
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessEnded(f"does not start ({error.strerror})") from error
        self._process = process
        _received(process)
        return process


def _exchange(process: subprocess.Popen[str], question: str) -> Mapping[str, Any]:
    assert process.stdin is not None
    try:
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
    except BrokenPipeError as error:
        raise ProcessEnded(f"ended with exit code {process.wait()}") from error
    return _received(process)


def _received(process: subprocess.Popen[str]) -> Mapping[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise ProcessEnded(f"ended with exit code {process.wait()}")
    answer: Mapping[str, Any] = json.loads(line)
    return answer
