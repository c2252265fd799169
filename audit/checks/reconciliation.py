"""Reconciliation: independent accounts of the same requests agree.

Claim: evidence. Null: the record of one hook agrees with the other hook's, with the
outputs, the engine's per-request metrics and its counters. Statistic: requests with
a mismatch, or without an account. A mismatch is no fault of the engine's
decoding: it means that the record cannot be trusted, so the verdict is
inconclusive, the request's evidence level is lowered, and a gate that requires
more cannot decide. Cannot see: an error that all accounts share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.checks.interface import Check, Design, Params, needs_nothing
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from engine.backends.evidence import Part

WHOLE_ARM = "the arm"
MAX_FINDINGS = 20
ONE_ACCOUNT = "there is one account only, the engine's own record"


def _account(request: RequestRecord) -> Mapping[str, Any]:
    account: Mapping[str, Any] = request.trace.header.facts.get("reconciliation", {})
    return account


def _problems(evidence: Evidence) -> list[str]:
    reported = evidence.candidate.effective.evidence
    return [] if reported is None else list(reported.problems)


def _applies(evidence: Evidence) -> str | None:
    if _problems(evidence) or any(_account(each) for each in evidence.candidate.requests):
        return None
    return ONE_ACCOUNT


def _foresee(params: Params, design: Design) -> str | None:
    del params
    return None if design.shown.gives(Part.ACCOUNTS) else ONE_ACCOUNT


def _run(evidence: Evidence, params: Params) -> CheckResult:
    del params
    problems, requests = _problems(evidence), evidence.candidate.requests
    findings = [Finding(WHOLE_ARM, 0, each) for each in problems]
    sources: set[str] = set()
    silent = 0
    for each in requests:
        account = _account(each)
        silent += not account
        sources |= set(account.get("sources", ()))
        findings += [Finding(each.request_id, 0, str(mismatch)) for mismatch in account.get("mismatches", ())]
    good = not findings and not silent
    return CheckResult(
        verdict=Verdict.CERTIFIED if good else Verdict.INCONCLUSIVE,
        summary=_summary(len(requests), sources, findings, silent),
        n=len(requests),
        statistic=float(len(findings)),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={"sources": sorted(sources), "without_account": silent, "problems": problems},
    )


def _summary(n: int, sources: set[str], findings: list[Finding], silent: int) -> str:
    accounts = ", ".join(sorted(sources)) or "no account"
    if findings:
        return f"{len(findings)} mismatches or problems, first: {findings[0].message}"
    return f"{silent} of {n} requests have no account" if silent else f"{accounts} agree on all {n} requests"


CHECK = Check(
    name="reconciliation",
    claim="evidence",
    needs=Level.L0,
    defaults={},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="independent accounts of every request agree",
    effect="mismatches",
    plan=needs_nothing,
    external=True,
)
