"""Measures the processor time of each test case, children included, and fails a unit case that costs too much.

Fixtures of wider scope than a function are measured apart and charged to their file, because they serve many cases. A
unit case above the limit runs up to three times more and the smallest cost counts: the first may pay for imports and
caches. The limit is of an idle machine. On one that is busy, or slower, the same work costs more: a piece of work that
is always the same says how much, and a case fails above twice the limit, because files are dearer still there.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import pytest
from _pytest.runner import runtestprotocol

LIMIT = 0.4
MEND = "mark it @pytest.mark.medium or make it cheaper"
RUNS = 4
MARGIN = 2.0
YARDSTICK_S = 0.0085  # what `yardstick` costs on the idle machine on which the limit was set


def processor_time() -> float:
    """Seconds of processor time of this process and of the children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def yardstick() -> float:
    """Seconds of processor time of a piece of work that is always the same, the least of three."""
    costs = []
    for _ in range(3):
        began = time.process_time()
        sum(number * number for number in range(200_000))
        costs.append(time.process_time() - began)
    return min(costs)


def slowness(yardstick_s: float) -> float:
    """How many times slower than an idle machine one with this yardstick is, between 1 and 3."""
    return min(max(yardstick_s / YARDSTICK_S, 1.0), 3.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """Reports of one run of a case, its own seconds and those of the shared fixtures that it began or ended."""

    reports: list[pytest.TestReport]
    own: float
    shared: float

    @property
    def passed(self) -> bool:
        return all(report.passed for report in self.reports)


class SharedFixtures:
    """A watch that runs while a fixture of wider scope than a function is set up or torn down."""

    def __init__(self) -> None:
        self.total = 0.0
        self._began: list[float] = []
        self._ending: set[int] = set()

    def begin(self) -> None:
        self._began.append(processor_time())

    def end(self) -> None:
        began = self._began.pop()
        if not self._began:
            self.total += processor_time() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self.begin()
        try:
            return (yield)
        finally:
            self.end()
            # the last to be added is the first to run, before the fixture's own
            fixturedef.addfinalizer(lambda: self._end_begins(fixturedef))

    def _end_begins(self, fixturedef: pytest.FixtureDef) -> None:
        self._ending.add(id(fixturedef))
        self.begin()

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef) -> None:
        if id(fixturedef) in self._ending:
            self._ending.remove(id(fixturedef))
            self.end()


class Costs:
    """The plugin: measures in each process that runs tests, writes and sums up in the one that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._limit = config.getoption("--cost-limit")
        self._shared = SharedFixtures()
        config.pluginmanager.register(self._shared, "shared-fixtures")
        reporting = not hasattr(config, "workerinput") and config.getoption("--costs")
        self._file: TextIO | None = open(reporting, "w") if reporting else None  # noqa: SIM115
        self._cases, self._own = 0, 0.0
        self._of_files: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        first = self._run(item, nextitem)
        best = first
        for _ in range(RUNS - 1):
            best = self._again(item, nextitem, best) if self._too_dear(item, best) else best
        if self._too_dear(item, best) and best.own > MARGIN * self._limit * slowness(yardstick()):
            self._fail(item, first.reports, best.own)
        first.reports[-1].cost, first.reports[-1].shared = best.own, first.shared
        for report in first.reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> Measured:
        begin, shared = processor_time(), self._shared.total
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        shared = self._shared.total - shared
        return Measured(reports, processor_time() - begin - shared, shared)

    def _again(self, item: pytest.Item, nextitem: pytest.Item | None, best: Measured) -> Measured:
        another = self._run(item, nextitem)
        return another if another.passed and another.own < best.own else best

    def _too_dear(self, item: pytest.Item, run: Measured) -> bool:
        return self._limit > 0 and run.own > self._limit and run.passed and item.get_closest_marker("unit") is not None

    def _fail(self, item: pytest.Item, reports: list[pytest.TestReport], cost: float) -> None:
        call = next(report for report in reports if report.when == "call")
        call.outcome = "failed"
        call.longrepr = (
            f"{item.nodeid} costs {cost:.2f} s of processor time, children included; "
            f"a case of the unit tier may cost {self._limit:g} s: {MEND}"
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "cost"):
            return
        self._cases, self._own = self._cases + 1, self._own + report.cost
        self._of_files[report.nodeid.partition("::")[0]] += report.shared
        if self._file:
            line = {"case": report.nodeid, "cost": round(report.cost, 4), "shared": round(report.shared, 4)}
            self._file.write(json.dumps(line) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shared = self._of_files.total()
        terminalreporter.write_line(
            f"processor time: {self._own:.0f} s of {self._cases} cases, {shared:.0f} s of the fixtures that they share"
        )
        for file, seconds in self._of_files.most_common(5):
            if seconds > 5:
                terminalreporter.write_line(f"  {seconds:.0f} s of fixtures in {file}")

    def pytest_unconfigure(self) -> None:
        if self._file:
            self._file.close()


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", metavar="FILE", help="--costs=FILE: write the processor time of each case, one JSON line each"
    )
    parser.addoption(
        "--cost-limit", type=float, default=LIMIT, help="seconds that a unit case may cost; 0 for no limit"
    )
