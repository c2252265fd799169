"""The generation explorer: some requests token by token, with what was drafted and not kept."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit.errors import CannotDecide
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.requests.choice import Choice, NamedFinding, chosen, findings_by_request
from audit.report.requests.pieces import Pieces, recorded_pieces
from audit.report.requests.request_view import Explored, explored
from audit.store import RequestKey
from audit.store.browse.request_list import request_key

MOST: Final = 12
"""Most requests of the page."""
MOST_NAMED: Final = 7
"""Most of them that are chosen for a finding."""
BRIEF: Final = 3
"""A page that must come at once has a share of them: one in this many."""


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
    """The requests that the rule of `audit.report.requests.choice` chooses; reads their traces and no others."""
    run, store = source.results.run, source.store
    findings = findings_by_request(source.results.checks)
    candidates, share = [arm.name for arm in run.candidates], BRIEF if source.brief else 1
    most, most_named = MOST // share, -(-MOST_NAMED // share)
    named = store.figures.present(run.ulid, _keys(candidates, findings))
    samples = [one for one in store.figures.samples(run.ulid, most + len(named)) if one.arm in candidates]
    if not samples:
        return Nothing("No candidate of this run has a request.")
    keys = sorted({*named, *(key for sample in samples for key in sample.keys)})
    total = sum(sample.requests for sample in samples)
    choice = chosen(keys, list(findings), most=most, most_named=most_named, of=total)
    pieces = recorded_pieces(store, run)
    return GenerationPage(choice, tuple(_read(source, key, pieces, findings.get(key.name, ())) for key in choice.keys))


def _keys(arms: Iterable[str], names: Iterable[str]) -> set[RequestKey]:
    """Requests that ARM/CASE#SAMPLE may name; several, where an arm's name begins with another's and a slash."""
    keys = (request_key(arm, name) for name in names for arm in arms if name.startswith(f"{arm}/"))
    return {key for key in keys if key is not None}


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
    "generations", "Generation explorer", "How did single answers come about, token by token?", read
)
