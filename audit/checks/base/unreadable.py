"""Requests whose record cannot be read: the writer refused it, or a pass along it could not follow it.

Each is a fault of its arm: of check `accounting`, or of every check that compares with the pass. The other requests
keep what they show, but no check certifies an arm of which it could not read a part.
"""

from dataclasses import replace
from typing import Final

from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import CheckResult, Finding, Verdict

PASSES: Final = {ArmKind.ANCHOR: "anchored", ArmKind.REREAD: "read again", ArmKind.REDRAFT: "drafted again"}
"""The passes along the candidate's own record; the noise arm follows the baseline's."""
UNJUDGED: Final = "a recorded value cannot be computed with"
OWNER: Final = "accounting"
"""The check that owns the records that could not be written."""


def with_unreadable(
    check: str, companions: tuple[ArmKind, ...], evidence: Evidence, result: CheckResult
) -> CheckResult:
    """The result of a check, given the requests that it could not see because of their record."""
    findings = [
        Finding(f"{evidence.candidate.name}/{key}", 0, f"the record cannot be {PASSES[kind]}: {reason}")
        for kind in companions
        if kind in PASSES and kind in evidence.companions
        for key, reason in evidence.companions[kind].unreadable.items()
    ]
    unwritten = [
        Finding(f"{evidence.candidate.name}/{key}", 0, f"the record cannot be written: {reason}")
        for key, reason in evidence.candidate.unreadable.items()
    ]
    if check == OWNER:
        findings += unwritten
    result = broken(findings, result)
    if unwritten and result.verdict is Verdict.CERTIFIED:
        first = unwritten[0]
        text = f"{len(unwritten)} requests are unreadable, first {first.request}: {first.message}; {result.summary}"
        return replace(result, verdict=Verdict.INCONCLUSIVE, summary=text)
    return result


def broken(findings: list[Finding], result: CheckResult) -> CheckResult:
    """The result with requests whose record is at fault; unchanged without any."""
    if not findings:
        return result
    first = findings[0]
    text = f"{len(findings)} requests are unreadable, first {first.request}: {first.message}"
    return replace(
        result,
        verdict=Verdict.FAULT,
        summary=f"{text}; {result.summary}" if result.summary else text,
        findings=(*findings, *result.findings),
        details={**result.details, "unreadable": len(findings)},
    )
