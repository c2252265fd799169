"""Draws charts in processes of their own, so that no page waits for the drawings of another one.

The library that draws holds the interpreter's lock, 30 to 100 ms for a chart. Charts are drawn in the order in which
they were asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Final, Self

from markupsafe import Markup

from audit.report.html import charts
from audit.report.html.charts import Chart
from audit.report.html.sections import acceptance
from engine.core.child import end_pool, pool_worker

PROCESSES: Final = 2
"""Charts that are drawn at the same time."""
ROUNDS: Final = 4
"""Drawings of each example after which a process draws no faster."""


class NotDrawn(Exception):
    """A chart that cannot be drawn."""


class ProcessEnded(Exception):
    """No process can be started; the message says how it ended."""


def draw_there(chart: Chart) -> str:
    """In a process that draws: the drawing.

    Raises:
        NotDrawn: whatever the library raises; the next chart may be drawn.
    """
    try:
        return charts.svg(chart)
    except Exception as error:
        raise NotDrawn(f"{type(error).__name__}: {error}") from None


def start_there() -> None:
    """The first call in a process that draws; the library's warnings hold texts of the store."""
    pool_worker(quiet=True)


@dataclass(frozen=True, slots=True)
class DrawingCalls:
    """The first call in each process, and that for a chart."""

    start: Callable[[], None] = start_there
    draw: Callable[[Chart], str] = draw_there


class Drawer:
    """Processes that draw: begun at the first charts, begun again where they died, ended with this context manager.

    If one does not start, this process draws from then on, and `report` gets a line that says so.
    """

    def __init__(self, report: Callable[[str], None], calls: DrawingCalls | None = None) -> None:
        self._report = report
        self._children = tuple(_DrawingChild(calls or DrawingCalls()) for _ in range(PROCESSES))
        self._idle: SimpleQueue[_DrawingChild] = SimpleQueue()
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

    def _draw(self, child: _DrawingChild, chart: Chart) -> Markup:
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


class _DrawingChild:
    """A pool of one process, which one thread at a time may ask for a drawing."""

    def __init__(self, calls: DrawingCalls) -> None:
        self._calls = calls
        self._pool: ProcessPoolExecutor | None = None
        self.process: BaseProcess | None = None

    def svg(self, chart: Chart) -> Markup:
        """The drawing of a chart; a process that has died since its last one gets a successor.

        Raises ProcessEnded: none can be started; NotDrawn: the chart cannot be drawn, or ended the successor.
        """
        if self._pool is not None:
            with suppress(BrokenProcessPool):
                return Markup(self._pool.submit(self._calls.draw, chart).result())
            self.end()
        pool, process = self._begun()
        try:
            return Markup(pool.submit(self._calls.draw, chart).result())
        except BrokenProcessPool as error:
            raise NotDrawn(f"the drawing process {_ending(process)}") from error

    def end(self) -> None:
        """End the process."""
        pool, self._pool, self.process = self._pool, None, None
        if pool is not None:
            end_pool(pool)

    def _begun(self) -> tuple[ProcessPoolExecutor, BaseProcess]:
        try:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=self._calls.start)
            ready = self._pool.submit(int)
            (self.process,) = self._pool._processes.values()
            ready.result()
        except OSError as error:
            raise ProcessEnded(f"does not start ({error.strerror})") from error
        except BrokenProcessPool as error:
            raise ProcessEnded("does not start" if self.process is None else _ending(self.process)) from error
        return self._pool, self.process


def _ending(process: BaseProcess) -> str:
    process.join()
    return f"ended with exit code {process.exitcode}"


def examples() -> tuple[Chart, ...]:
    """Charts of the kinds that pages have, with made-up numbers."""
    kinds = (
        make(()) for make in (acceptance.by_place, acceptance.lengths, acceptance.by_domain, acceptance.over_requests)
    )
    return tuple(replace(chart, rows=tuple((number,) * len(chart.fields) for number in (0, 1))) for chart in kinds)
