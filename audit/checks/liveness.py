"""Liveness: every request is answered.

Claim: liveness. Null: the engine answers every request that was sent. Statistic: requests without an answer; one is a
fault, because its client gets nothing. The finding distinguishes the kinds: a crash names the request that caused it, a
refusal quotes the engine's message. The baseline's requests are judged too: a request that dies in both arms dies
without speculation as well, and the summary blames the engine and not the speculating arm. Effect: the share of the
arm's requests without an answer; bound: its 99 % Clopper-Pearson upper bound. Cannot see: answers that are late
(performance), or wrong; whether a request that died in both arms died of the same cause.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.checks.base.interface import Check
from audit.checks.base.plans import plan_requests
from audit.evidence.records import ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect

REFUSED = "refused"


def _applies(evidence: Evidence) -> str | None:
    arm = evidence.candidate
    return None if len(arm.requests) or len(arm.failed) else NoEvidence("the arm has no requests")


def _error(request: RequestRecord) -> Mapping[str, Any]:
    error: Mapping[str, Any] = request.trace.header.facts.get("error", {})
    return error


@dataclass(frozen=True, slots=True)
class Lost:
    """An arm's `n` requests and those without an answer; refusals that the suite allows are only counted."""

    n: int
    requests: tuple[RequestRecord, ...] = ()
    refused: tuple[RequestRecord, ...] = ()

    @property
    def kinds(self) -> dict[str, int]:
        """Number of lost requests of each kind."""
        return dict(sorted(Counter(_kind(request) for request in self.requests).items()))

    @property
    def keys(self) -> frozenset[str]:
        """Pairing keys of the lost requests."""
        return frozenset(request.key for request in self.requests)

    @property
    def words(self) -> str:
        """How many of how many requests are lost, and how."""
        named = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        return f"{len(self.requests)} of {self.n} requests have no answer ({named})"


def _kind(request: RequestRecord) -> str:
    return str(_error(request).get("kind", "unknown"))


def _lost(arm: ArmRecord | None, *, refusals: bool) -> Lost:
    if arm is None:
        return Lost(0)
    refused = tuple(item for item in arm.failed if refusals and _kind(item) == REFUSED)
    kept = tuple(item for item in arm.failed if not (refusals and _kind(item) == REFUSED))
    return Lost(len(arm.requests) + len(arm.failed), kept, refused)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    ours, plain = (_lost(arm, refusals=bool(params["refusals"])) for arm in (evidence.candidate, evidence.baseline))
    lost, margin = len(ours.requests), float(params["margin"])
    bound = upper_bound(lost, ours.n)
    broken = lost or plain.requests
    verdict = Verdict.FAULT if broken else Verdict.CERTIFIED if bound <= margin else Verdict.INCONCLUSIVE
    return CheckResult(
        verdict=verdict,
        summary=_summary(ours, plain, bound),
        n=ours.n,
        statistic=float(lost),
        effect=lost / ours.n,
        bound=bound,
        margin=margin,
        detectable=replay_effect(ours.n),
        findings=_findings(ours, plain),
        details={
            # refusals that the suite allows are kinds too
            "kinds": dict(sorted(Counter(map(_kind, evidence.candidate.failed)).items())),
            "without_speculation_as_well": len(ours.keys & plain.keys),
            "baseline": {"requests": plain.n, "lost": len(plain.requests), "kinds": plain.kinds},
        },
    )


def _summary(ours: Lost, plain: Lost, bound: float) -> str:
    count = len(ours.refused)
    allowed = f"; {count} refused, which the suite allows: {_reason(ours.refused[0])}" if count else ""
    answered = f"all {ours.n - count} requests were answered"
    if not ours.requests and not plain.requests:
        return f"{answered}, at most {bound:.2g} are not{allowed}"
    if not ours.requests:
        return f"{answered}{allowed}; fault of the baseline: without speculation {plain.words}"
    return f"{ours.words}{_share(ours, plain)}{allowed}"


def _share(ours: Lost, plain: Lost) -> str:
    """The share that the baseline lost too, without speculation."""
    if not plain.requests:
        return ""
    both = len(ours.keys & plain.keys)
    if both == len(ours.requests):
        return f", without speculation as well: fault of the baseline, where {plain.words}"
    return f", {both} of them without speculation as well; of the baseline {plain.words}"


def _findings(ours: Lost, plain: Lost) -> tuple[Finding, ...]:
    # untried requests do not show the cause: list the requests that were tried first
    tried = sorted(ours.requests, key=lambda request: _kind(request) == "not_tried")
    also = "; without speculation as well"
    result = [
        Finding(item.request_id, 0, _words(item) + (also if item.key in plain.keys else ""))
        # what only the speculating arm lost is its own
        for item in sorted(tried, key=lambda request: request.key in plain.keys)
    ]
    result += [
        Finding(request.request_id, 0, f"without speculation: {_words(request)}")
        for request in plain.requests
        if request.key not in ours.keys
    ]
    return tuple(result)[:MAX_FINDINGS]


def _words(request: RequestRecord) -> str:
    return f"{_kind(request)}: {_reason(request)}"


def _reason(request: RequestRecord) -> str:
    return str(_error(request).get("message", "no reason is recorded"))


CHECK = Check(
    name="liveness",
    claim="liveness",
    defaults={"margin": 1.0, "refusals": False},
    run=_run,
    applies=_applies,
    null="the engine answers every request",
    effect="share of requests without an answer",
    plan=plan_requests,
    failures=True,
    external=True,
)
