"""Liveness: every request is answered.

Claim: liveness. Null: the engine answers every request that was sent. Statistic:
requests without an answer; one is a fault, because its client gets nothing. The
finding distinguishes the kinds: a crash names the request that caused it, a
refusal quotes the engine's message. Effect: the share of requests without an
answer; bound: its 99 % Clopper-Pearson upper bound. Cannot see: answers that
are late (performance), or wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.checks.interface import Check, Design, NoEvidence, Params
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect, zero_need
from audit.stats.sample_size import SampleSize

REFUSED = "refused"
UNTRIED = "not_tried"
MAX_FINDINGS = 20


def _applies(evidence: Evidence) -> str | None:
    arm = evidence.candidate
    return None if len(arm.requests) or len(arm.failed) else NoEvidence("the arm has no requests")


def _error(request: RequestRecord) -> Mapping[str, Any]:
    error: Mapping[str, Any] = request.trace.header.facts.get("error", {})
    return error


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    kinds = Counter(str(_error(each).get("kind", "unknown")) for each in arm.failed)
    refused = kinds[REFUSED] if params["refusals"] else 0
    n, lost = len(arm.requests) + len(arm.failed), len(arm.failed) - refused
    bound = upper_bound(lost, n)
    verdict = Verdict.FAULT if lost else Verdict.CERTIFIED if bound <= float(params["margin"]) else Verdict.INCONCLUSIVE
    return CheckResult(
        verdict=verdict,
        summary=_summary(n, lost, refused, kinds, bound),
        n=n,
        statistic=float(lost),
        effect=lost / n,
        bound=bound,
        margin=float(params["margin"]),
        detectable=replay_effect(n),
        findings=_findings(arm.failed, allowed=REFUSED if params["refusals"] else None),
        details={"kinds": dict(sorted(kinds.items()))},
    )


def _summary(n: int, lost: int, refused: int, kinds: Counter[str], bound: float) -> str:
    allowed = f"; {refused} refused, which the suite allows" if refused else ""
    if lost:
        named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return f"{lost} of {n} requests have no answer ({named}){allowed}"
    return f"all {n - refused} requests were answered, at most {bound:.2g} are not{allowed}"


def _findings(failed: Sequence[RequestRecord], allowed: str | None) -> tuple[Finding, ...]:
    # untried requests do not show the cause: list the requests that were tried first
    errors = sorted(
        ((each.request_id, _error(each)) for each in failed), key=lambda item: item[1].get("kind") == UNTRIED
    )
    found = (
        Finding(name, 0, f"{error.get('kind', 'unknown')}: {error.get('message', 'no reason is recorded')}")
        for name, error in errors
        if error.get("kind") != allowed
    )
    return tuple(found)[:MAX_FINDINGS]


def _plan(params: Params, design: Design) -> SampleSize | None:
    del design
    margin = float(params["margin"])
    # every prompt makes at least one request
    return replace(zero_need(margin), unit="prompts") if margin < 1.0 else None


CHECK = Check(
    name="liveness",
    claim="liveness",
    needs=Level.L0,
    defaults={"margin": 1.0, "refusals": False},
    run=_run,
    applies=_applies,
    null="the engine answers every request",
    effect="share of requests without an answer",
    plan=_plan,
    failures=True,
    external=True,
)
