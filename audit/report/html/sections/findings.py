"""Findings: the places where a claim fails, with the command that turns each fault into a small reproducer."""

import shlex
from dataclasses import dataclass
from typing import Final

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Finding, Verdict
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.tables.known_defects import defect_lines
from audit.store import StoredCheck

MOST: Final = 50
"""Findings of one check that the page lists."""


@dataclass(frozen=True, slots=True)
class CheckFindings:
    """The findings of one check, `left` more than are listed, and the command that minimizes its fault."""

    check: StoredCheck
    findings: tuple[tuple[Finding, bool], ...]
    """The bool is False where it is about the arm as a whole."""
    left: int
    fault: str | None
    command: str | None


@dataclass(frozen=True, slots=True)
class RunFindings:
    """The findings of a run, and known defects of other engines that fit them."""

    checks: tuple[CheckFindings, ...]
    defects: tuple[str, ...]


def read(source: ReportSource) -> RunFindings | Nothing:
    """The findings of a run."""
    shown = source.results
    named = [check for check in shown.checks if check.findings or check.erased or check.verdict is Verdict.FAULT]
    if not named:
        return Nothing("No check of this run has a finding.")
    checks = tuple(_findings(source, check) for check in named)
    return RunFindings(checks, tuple(defect_lines(shown.run.arms, shown.checks)))


def _findings(source: ReportSource, check: StoredCheck) -> CheckFindings:
    arm = source.results.run.arm(check.arm)
    candidate = arm is not None and arm.kind is ArmKind.CANDIDATE
    command = minimize_command(source, check) if check.verdict is Verdict.FAULT and candidate else None
    left = max(0, len(check.findings) - MOST)
    listed = tuple((one, is_request(one, check.arm)) for one in check.findings[:MOST])
    return CheckFindings(check, listed, left, None if arm is None else arm.fault, command)


def minimize_command(source: ReportSource, check: StoredCheck) -> str:
    """The command for a check's fault, from the first request that a finding names."""
    request = next((one.request for one in check.findings if is_request(one, check.arm)), None)
    words = ["audit", "minimize", source.run, *([] if request is None else [request])]
    return shlex.join([*words, "--check", check.check, "--store", source.store.url])


def is_request(finding: Finding, arm: str) -> bool:
    """True if the finding names a request of the arm, not the arm as a whole."""
    return finding.request.startswith(f"{arm}/") and "#" in finding.request


SECTION: Final = ReportSection(
    "findings", "Findings", "Where exactly does a claim fail, and how is that reproduced?", read
)
