"""The generation explorer: some requests token by token, with what was drafted and not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from audit.errors import CannotDecide
from audit.report.choice import Choice, NamedFinding, chosen, findings_by_request
from audit.report.explored import Explored, explored
from audit.report.html.section import Nothing, ReportSection, ReportSource
from audit.report.pieces import Pieces, recorded_pieces
from audit.store import RequestKey

MOST: Final = 12
"""Most requests of the page."""
MOST_NAMED: Final = 7
"""Most of them that are chosen for a finding."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A chosen request that cannot be drawn, and why."""

    request: str
    why: str


@dataclass(frozen=True, slots=True)
class GenerationPage:
    """The chosen requests of a run's candidates in the order of the choice."""

    choice: Choice
    shown: tuple[Explored | Unreadable, ...]


def read(source: ReportSource) -> GenerationPage | Nothing:
    """The requests that the rule of `audit.report.choice` chooses; reads their traces and no others."""
    run, store = source.results.run, source.store
    candidates = {arm.name for arm in run.candidates}
    keys = sorted(key for key in store.finished(run.ulid) if key.arm in candidates)
    if not keys:
        return Nothing("No candidate of this run has a request.")
    findings = findings_by_request(source.results.checks)
    choice = chosen(keys, list(findings), most=MOST, most_named=MOST_NAMED)
    pieces = recorded_pieces(store, run)
    return GenerationPage(choice, tuple(_read(source, key, pieces, findings.get(key.name, ())) for key in choice.keys))


def _read(
    source: ReportSource, key: RequestKey, pieces: Pieces, findings: tuple[NamedFinding, ...]
) -> Explored | Unreadable:
    try:
        record = source.store.load_arm(source.run, key.arm, [key])
    except CannotDecide as error:
        return Unreadable(key.name, str(error))
    (request,) = (*record.requests, *record.failed, *record.refused)
    return explored(request, pieces, findings, name=key.name)


SECTION: Final = ReportSection(
    name="generations",
    title="Generation explorer",
    question="How did single answers come about, token by token?",
    template="generations.html",
    read=read,
)
