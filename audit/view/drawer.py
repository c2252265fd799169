"""Draws charts in a process of its own, so that no page waits for the drawing of another one.

The library that draws holds the interpreter's lock, 30 to 100 ms for a chart. Charts are drawn in the order in which
they were asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final, Self

from markupsafe import Markup

from audit.report.html import charts
from audit.report.html.charts import Chart
from audit.report.html.sections import acceptance

COMMAND: Final = (sys.executable, "-P", "-m", "audit.view.drawing_process")
ROUNDS_FIRST: Final = 4
"""Drawings of each example before the first page."""
ROUNDS: Final = 12
"""Drawings of each example after which the library's compiler has little left to do."""


class NotDrawn(Exception):
    """A chart that cannot be drawn."""


class _Ended(Exception):
    """The process is gone; the message says how."""


class Drawer:
    """A process that draws: begun at the first chart, begun again where it died, ended with this context manager.

    If it does not start, this process draws, and `report` gets a line that says so.
    """

    def __init__(self, report: Callable[[str], None], command: Sequence[str] = COMMAND) -> None:
        self._report, self._command = report, command
        self._child: subprocess.Popen[str] | None = None
        self._here = self._asked = False
        # its one thread alone talks to the process
        self._turns = ThreadPoolExecutor(1, "drawer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._turns.shutdown(cancel_futures=True)
        self._end()

    def svg(self, chart: Chart) -> Markup:
        """The drawing of a chart, as `audit.report.html.charts.svg` makes it.

        Raises:
            NotDrawn: the chart cannot be drawn.
        """
        self._asked = True
        return self._turns.submit(self._draw, chart).result()

    def warm_up(self) -> Sequence[Future[Markup]]:
        """Begin to draw examples, because the library's first drawings of a kind are slow; a server waits for these.

        The drawer goes on with more until a page asks for a chart.
        """
        known = examples()
        first = [self._turns.submit(self._draw, chart) for chart in known * ROUNDS_FIRST]
        self._turns.submit(self._draw_more, known * (ROUNDS - ROUNDS_FIRST))
        return first

    def _draw_more(self, left: Sequence[Chart]) -> None:
        if left and not self._asked and not self._here:
            self._draw(left[0])
            self._turns.submit(self._draw_more, left[1:])

    def _draw(self, chart: Chart) -> Markup:
        if not self._here:
            try:
                return self._drawn_outside(chart)
            except _Ended as error:
                self._end()
                self._here = True
                self._report(f"the server draws charts itself, so pages take longer: its drawing process {error}")
        return charts.svg(chart)

    def _drawn_outside(self, chart: Chart) -> Markup:
        answer = self._answer(json.dumps(asdict(chart)))
        if "failed" in answer:
            raise NotDrawn(answer["failed"])
        return Markup(answer["svg"])

    def _answer(self, question: str) -> Mapping[str, Any]:
        """What the process answers; one that has died since its last answer gets a successor.

        Raises:
            _Ended: none can be started.
            NotDrawn: the chart ended the successor.
        """
        if self._child is not None:
            with suppress(_Ended):
                return _exchange(self._child, question)
        self._end()
        child = self._begun()
        try:
            return _exchange(child, question)
        except _Ended as error:
            raise NotDrawn(f"the drawing process {error}") from error

    def _begun(self) -> subprocess.Popen[str]:
        try:
            child = subprocess.Popen(
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
            raise _Ended(f"does not start ({error.strerror})") from error
        self._child = child
        _received(child)
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            # what it did not read is still to be written
            with suppress(BrokenPipeError), child:
                pass


def _exchange(child: subprocess.Popen[str], question: str) -> Mapping[str, Any]:
    assert child.stdin is not None
    try:
        child.stdin.write(f"{question}\n")
        child.stdin.flush()
    except BrokenPipeError as error:
        raise _Ended(f"ended with exit code {child.wait()}") from error
    return _received(child)


def _received(child: subprocess.Popen[str]) -> Mapping[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line.endswith("\n"):
        raise _Ended(f"ended with exit code {child.wait()}")
    answer: Mapping[str, Any] = json.loads(line)
    return answer


def examples() -> tuple[Chart, ...]:
    """Charts of the kinds that pages have, with made-up numbers."""
    kinds = (
        make(()) for make in (acceptance.by_place, acceptance.lengths, acceptance.by_domain, acceptance.over_requests)
    )
    return tuple(replace(chart, rows=tuple((number,) * len(chart.fields) for number in (0, 1))) for chart in kinds)
