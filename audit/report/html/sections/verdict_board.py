"""The verdict board: every claim of every arm with its verdict, what follows from it, and what the gate decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.report.html.section import Nothing, ReportSection, ReportSource
from audit.report.next_step import next_step
from audit.report.verdicts import conclusion
from audit.store import StoredCheck, StoredRun

MEANINGS: Final[Mapping[Verdict, str]] = {
    Verdict.CERTIFIED: "The bound lies within the margin, on the prompts of this run.",
    Verdict.FAULT: "The evidence contradicts the claim.",
    Verdict.INCONCLUSIVE: "The evidence shows neither; this is not a pass.",
    Verdict.NOT_RUN: "The check lacks its evidence or does not apply to the arm.",
}


@dataclass(frozen=True, slots=True)
class VerdictBoard:
    """The checks of a run by arm, the run's conclusion, and the command that helps an undecided run."""

    run: StoredRun
    conclusion: str
    next_step: str | None
    checks: tuple[StoredCheck, ...]
    meanings: Mapping[str, str]


def read(source: ReportSource) -> VerdictBoard | Nothing:
    """The verdicts of a run."""
    run, checks = source.results.run, source.results.checks
    if not checks:
        return Nothing("No check has judged this run yet, so there are no verdicts.")
    meanings = {verdict.value: text for verdict, text in MEANINGS.items()}
    return VerdictBoard(run, conclusion(run.exit_code), next_step(run, checks, source.store.url), checks, meanings)


SECTION: Final = ReportSection(
    name="verdicts",
    title="Verdict board",
    question="Did speculation leave the output of the target model unchanged, claim by claim?",
    template="verdict_board.html",
    read=read,
)
