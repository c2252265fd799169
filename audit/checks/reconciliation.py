"""Reconciliation: independent accounts of the same requests agree.

Claim: evidence. Null: the record of one hook agrees with the other hook's, with the outputs, the engine's per-request
metrics and its counters. Statistic: requests with a mismatch, or without an account. A mismatch alone is no fault of
the engine's decoding: one of the accounts is wrong, and no one knows which, so the verdict is inconclusive, the
request's evidence level is lowered, and a gate that requires more cannot decide. A mismatch that the backend lists
under `faults` is one: the target drew a token, and the engine returned another at that place. Tokens are compared by
their ids, so no rounding and no near-tie is behind it. A hook that found the engine changed takes the standing from all
accounts. Cannot see: an error that all accounts share.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from audit.checks.base.interface import Check, gives
from audit.evidence.identity import STREAMED
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.verdicts import MAX_FINDINGS, WHOLE_ARM, CheckResult, Finding, Params, Verdict
from engine.backends.evidence import Part
from engine.backends.openai.server_counters import DRAFTED, DRAFTS, POSITIONS

ONE_ACCOUNT = "there is one account only, the engine's own record"


def _account(request: RequestRecord) -> Mapping[str, Any]:
    account: Mapping[str, Any] = request.trace.header.facts.get("reconciliation", {})
    return account


def _problems(evidence: Evidence) -> list[str]:
    reported = evidence.candidate.effective.evidence
    return [] if reported is None else list(reported.problems)


def _applies(evidence: Evidence) -> str | None:
    if _problems(evidence) or any(_account(request) for request in evidence.candidate.requests):
        return None
    return ONE_ACCOUNT


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    problems, requests = _problems(evidence), evidence.candidate.requests
    accounts = [_account(request) for request in requests]
    # an engine that is not the one the hooks were written for may draw elsewhere
    faults = [] if problems else _findings(requests, accounts, "faults")
    mismatches = _findings(requests, accounts, "mismatches")
    rest = [Finding(WHOLE_ARM, 0, problem) for problem in [*problems, *_counters(requests)]] + [
        mismatche for mismatche in mismatches if mismatche not in faults
    ]
    sources = sorted({str(name) for account in accounts for name in account.get("sources", ())})
    silent = sum(not account for account in accounts)
    return CheckResult(
        verdict=_verdict(faults, rest, silent),
        summary=_summary(len(requests), sources, (faults, rest), silent),
        n=len(requests),
        statistic=float(len(faults) + len(rest)),
        findings=tuple([*faults, *rest][:MAX_FINDINGS]),
        details={"sources": sources, "without_account": silent, "problems": problems, "misreturned": len(faults)},
    )


def _findings(requests: Sequence[RequestRecord], accounts: Sequence[Mapping[str, Any]], kind: str) -> list[Finding]:
    return [
        Finding(item.request_id, 0, str(message))
        for item, account in zip(requests, accounts, strict=True)
        for message in account.get(kind, ())
    ]


def _counters(requests: Sequence[RequestRecord]) -> list[str]:
    """Where the growth of the server's counters contradicts the answers, or itself."""
    facts = [request.trace.header.facts for request in requests]
    windows = [fact["server_counters"] for fact in facts if "server_counters" in fact]
    sums = _sums(facts, windows) if windows and not any(window.get("restarted") for window in windows) else []
    return sums + [line for window in windows for line in _longer_drafts(window)]


def _sums(facts: Sequence[Mapping[str, Any]], windows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Counters include what other clients did, so they may grow by more than the answers count; with as many finished
    requests as were sent, each in one attempt, they may not.
    """
    told = [fact.get("speculation") or {} for fact in facts]
    sent = sum(int(window["requests"]) for window in windows)
    once = sent == len(facts) and all(fact.get("attempts") == 1 and STREAMED not in fact for fact in facts)
    alone = once and sum(int(window.get("finished", -1)) for window in windows) == sent
    problems = []
    for name in ("drafted", "accepted"):
        if not all(name in part for part in (*windows, *told)):
            continue
        total, grown = sum(int(part[name]) for part in told), sum(int(window[name]) for window in windows)
        if grown < total or (alone and grown > total):
            problems.append(f"the answers count {total} {name} tokens, the server's counter grew by {grown}")
    return problems


def _longer_drafts(window: Mapping[str, Any]) -> list[str]:
    """Steps that drafted more tokens on average than there are places in a draft, by the server's own counters."""
    samples = window.get("samples", {})
    places = sum(str(name).startswith(f"{POSITIONS}[") for name in samples)
    drafts, drafted = samples.get(DRAFTS), samples.get(DRAFTED)
    if not places or drafts is None or drafted is None or drafted <= drafts * places:
        return []
    return [f"the server counts {drafted:.0f} drafted tokens in {drafts:.0f} drafts of at most {places}"]


def _verdict(faults: list[Finding], rest: list[Finding], silent: int) -> Verdict:
    if faults:
        return Verdict.FAULT
    return Verdict.INCONCLUSIVE if rest or silent else Verdict.CERTIFIED


def _summary(n: int, sources: list[str], result: tuple[list[Finding], list[Finding]], silent: int) -> str:
    faults, rest = result
    if faults:
        wrong = len({fault.request for fault in faults})
        return f"{wrong} of {n} requests returned tokens that the target did not draw, first: {faults[0].message}"
    if rest:
        return f"{len(rest)} mismatches or problems, first: {rest[0].message}"
    accounts = ", ".join(sources) or "no account"
    return f"{silent} of {n} requests have no account" if silent else f"{accounts} agree on all {n} requests"


CHECK = Check(
    name="reconciliation",
    claim="evidence",
    run=_run,
    applies=_applies,
    foresee=gives(Part.ACCOUNTS, ONE_ACCOUNT),
    null="independent accounts of every request agree",
    effect="mismatches",
    external=True,
)
