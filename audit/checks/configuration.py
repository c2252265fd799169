"""Configuration: what runs is what was asked for.

Claim: configuration. Null: every setting that the suite asks the engine for is
in effect. Statistic: settings whose effective value, read off the running
engine, differs from the requested one; one is a fault, because every other
verdict would be about another engine. Cannot see: settings that the backend
does not read back, and an engine that reports one thing and does another (see
honoured).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.checks.base import Check, CheckResult, Finding, Params, Verdict, needs_nothing
from audit.records import Evidence, Level

WHOLE_ARM = "the arm"


def _applies(evidence: Evidence) -> str | None:
    said = evidence.candidate.effective
    return None if said.get("requested") else "the backend decodes here: it runs what it is given, or not at all"


def _run(evidence: Evidence, params: Params) -> CheckResult:
    del params
    said = evidence.candidate.effective
    requested: Mapping[str, Any] = said["requested"]
    effective: Mapping[str, Any] = said.get("effective", {})
    unread = sorted(key for key in requested if key not in effective)
    wrong = {key: value for key, value in requested.items() if key in effective and effective[key] != value}
    if wrong:
        verdict = Verdict.FAULT
        summary = "; ".join(_difference(key, value, effective[key]) for key, value in sorted(wrong.items()))
    elif unread:
        verdict, summary = Verdict.INCONCLUSIVE, f"not read back from the engine: {', '.join(unread)}"
    else:
        verdict, summary = Verdict.CERTIFIED, f"all {len(requested)} settings that were asked for are in effect"
    return CheckResult(
        verdict=verdict,
        summary=summary,
        n=len(requested),
        statistic=float(len(wrong)),
        findings=tuple(
            Finding(WHOLE_ARM, 0, _difference(key, value, effective[key])) for key, value in sorted(wrong.items())
        ),
        details={"requested": dict(requested), "effective": dict(effective)},
    )


def _difference(key: str, requested: object, effective: object) -> str:
    return f"{key}: {requested!r} was asked for, {effective!r} runs"


CHECK = Check(
    name="configuration",
    claim="configuration",
    needs=Level.L0,
    defaults={},
    run=_run,
    applies=_applies,
    null="every setting that was asked for is in effect",
    effect="settings that are not in effect",
    plan=needs_nothing,
    failures=True,
    external=True,
)
