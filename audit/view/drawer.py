"""Draws charts in processes of their own, so that no page waits for the drawings of another one.

The library that draws holds the interpreter's lock, 30 to 100 ms for a chart. Charts are drawn in the order in which
they were asked for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Final, Self

from markupsafe import Markup

from audit.report.html import charts
from audit.report.html.charts import Chart
from audit.report.html.sections import acceptance
from audit.view.drawing_child import DrawingChild, ProcessEnded

COMMAND: Final = (sys.executable, "-P", "-m", "audit.view.drawing_process")
PROCESSES: Final = 2
"""Charts that are drawn at the same time."""
ROUNDS: Final = 4
"""Drawings of each example after which a process draws no faster."""


class Drawer:
    """Processes that draw: begun at the first charts, begun again where they died, ended with this context manager.

    If one does not start, this process draws from then on, and `report` gets a line that says so.
    """

    def __init__(self, report: Callable[[str], None], command: Sequence[str] = COMMAND) -> None:
        self._report = report
        self._children = tuple(DrawingChild(command) for _ in range(PROCESSES))
        self._idle: SimpleQueue[DrawingChild] = SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self._here = False
        self._failing = threading.Lock()
        # as many threads as processes, so a thread that draws always finds an idle one
        self._turns = ThreadPoolExecutor(PROCESSES, "drawer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._turns.shutdown(cancel_futures=True)
        for child in self._children:
            child.end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that have begun."""
        return tuple(child.pid for child in self._children if child.pid is not None)

    def begin(self, chart: Chart) -> Future[Markup]:
        """Begin a drawing, which is what `audit.report.html.charts.svg` makes; it fails with `NotDrawn`."""
        return self._turns.submit(self._drawn, (chart,))

    def warm_up(self) -> Sequence[Future[Markup]]:
        """Let each process draw examples, because the library's first drawings of a kind are slow."""
        return [self._turns.submit(self._drawn, examples() * ROUNDS) for _ in self._children]

    def _drawn(self, wanted: Sequence[Chart]) -> Markup:
        """The last of some drawings, all by the same process."""
        child = self._idle.get()
        try:
            return [self._draw(child, chart) for chart in wanted][-1]
        finally:
            self._idle.put(child)

    def _draw(self, child: DrawingChild, chart: Chart) -> Markup:
        if not self._here:
            try:
                return child.svg(chart)
            except ProcessEnded as error:
                child.end()
                self._draw_here(f"its drawing process {error}")
        return charts.svg(chart)

    def _draw_here(self, reason: str) -> None:
        with self._failing:
            if not self._here:
                self._report(f"the server draws charts itself, so pages take longer: {reason}")
            self._here = True


def examples() -> tuple[Chart, ...]:
    """Charts of the kinds that pages have, with made-up numbers."""
    kinds = (
        make(()) for make in (acceptance.by_place, acceptance.lengths, acceptance.by_domain, acceptance.over_requests)
    )
    return tuple(replace(chart, rows=tuple((number,) * len(chart.fields) for number in (0, 1))) for chart in kinds)
