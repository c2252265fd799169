"""Sections of the report, and the source that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from audit.report.tables.results import Results, results
from audit.store import Store


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

    name: its anchor and, in the viewer, its address; lower case with hyphens.
    title: its heading.
    question: the question that it answers, as one sentence.
    template: the file under `templates/sections`, which gets what `read` returns as `it`.
    read: reads a frozen dataclass of the run, or `Nothing`.
    """

    name: str
    title: str
    question: str
    template: str
    read: Callable[[ReportSource], Any]


def source_of(store: Store, run: str, *, brief: bool = False) -> ReportSource:
    """The source of a run's page; `run` is a whole ULID."""
    return ReportSource(store, run, results(store, run), brief)
