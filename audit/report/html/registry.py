"""Sections of the report in the page's order, and the source that they read.

A new section is a file, a template and a line here.

"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from audit.errors import UserError
from audit.report.tables.results import Results, results
from audit.store import Store
from engine.core.registry import load


@dataclass(frozen=True, slots=True)
class ReportSource:
    """The run that a page is about: its ULID, the open store, and the results, which every section needs.

    brief: the page must come at once, so a section leaves out what takes seconds to compute, and says so.
    """

    store: Store
    run: str
    results: Results
    brief: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why a section has nothing to show for a run, as one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One section of the page.

    name: its anchor, in the viewer its address, and the name of its template, which gets what `read` returns as `it`.
    title: its heading.
    question: the question that it answers, as one sentence.
    read: reads a frozen dataclass of the run, or `Nothing`.
    """

    name: str
    title: str
    question: str
    read: Callable[[ReportSource], Any]

    @property
    def template(self) -> str:
        """The file under `templates/sections`."""
        return f"{self.name}.html"


def source_of(store: Store, run: str, *, brief: bool = False) -> ReportSource:
    """The source of a run's page; `run` is a whole ULID."""
    return ReportSource(store, run, results(store, run), brief)


SECTIONS: Final = (
    *("audit.report.html.sections.verdict_board:SECTION", "audit.report.html.sections.certificate:SECTION"),
    *("audit.report.html.sections.acceptance:SECTION", "audit.report.html.sections.divergences:SECTION"),
    *("audit.report.html.sections.generations:SECTION", "audit.report.html.sections.law:SECTION"),
    *("audit.report.html.sections.numerics:SECTION", "audit.report.html.sections.provenance:SECTION"),
    "audit.report.html.sections.findings:SECTION",
)
"""Places of the sections, imported when a page is made."""


@cache
def sections() -> tuple[ReportSection, ...]:
    """The sections in the page's order."""
    return tuple(_load(place) for place in SECTIONS)


def section(name: str) -> ReportSection:
    """The section of a name. Raises UserError: the report has no such section."""
    match = next((one for one in sections() if one.name == name), None)
    if match is None:
        raise UserError(f"no section {name!r}; the report has: {', '.join(one.name for one in sections())}")
    return match


def _load(place: str) -> ReportSection:
    loaded = load(place)
    if not isinstance(loaded, ReportSection):
        raise TypeError(f"{place} is no section of the report")
    return loaded
