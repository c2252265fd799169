"""Environment and provenance: what ran, on what, and the digests that name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from audit.report.html.section import ReportSection, ReportSource
from audit.store import StoredRun


@dataclass(frozen=True, slots=True)
class Provenance:
    """The run with its artifacts and its environment."""

    run: StoredRun


def read(source: ReportSource) -> Provenance:
    """The provenance of a run."""
    return Provenance(source.results.run)


SECTION: Final = ReportSection(
    name="provenance",
    title="Environment and provenance",
    question="What ran, on which machine and software, and which digests name it?",
    template="provenance.html",
    read=read,
)
