"""Environment and provenance: what ran, on what, the digests that name it, and the disclosure statement."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.report.html.registry import ReportSection, ReportSource
from audit.report.statements.disclosure import read_disclosure
from audit.report.statements.disclosure_words import Section, sections
from audit.store import StoredJudgement, StoredRun

RECOMPUTED: Final = 200_000
"""Tokens of the longest run whose hashes are recomputed for a page."""


Listed = tuple[tuple[str, str], ...]
"""Names with their texts, as the page lists them."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The run with its environment, later judgements, and the statement about its speculation."""

    run: StoredRun
    machine: Listed
    packages: Listed
    code: Listed
    judgements: tuple[StoredJudgement, ...]
    statement: tuple[Section, ...]


def read(source: ReportSource) -> Provenance:
    """The provenance of a run."""
    run = source.results.run
    place = run.environment
    recompute = not source.brief and (run.tokens or 0) <= RECOMPUTED
    statement = read_disclosure(source.store, source.run, recompute=recompute)
    return Provenance(
        run=run,
        machine=_listed(place.hardware),
        packages=_listed(place.packages),
        code=_listed(place.code),
        judgements=source.store.judgements(source.run),
        statement=sections(statement),
    )


def _listed(values: Mapping[str, Any]) -> Listed:
    return tuple((name.replace("_", " "), _text(value)) for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value)


SECTION: Final = ReportSection(
    "provenance",
    "Environment and provenance",
    "What ran, on which machine and software, and which digests name it?",
    read,
)
