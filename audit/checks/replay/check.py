"""Replay: every decision of every step, recomputed from the record alone.

Claim: replay. Null: the engine's decisions follow its declared protocol, given the
recorded rows and the numbers of its key. Statistic: the number of decisions that
differ; any is a fault. Effect and bound: the share of differing decisions and its
99 % Clopper-Pearson upper bound. Assumes that the record is complete and holds what
the engine used. Cannot see: whether the recorded rows belong to the prefix, or
anything that the engine did not record. Shares `engine.sampling.transforms` and
`engine.sampling.rng` with the engine, so it cannot see a fault in those two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.checks.interface import NO_KEY, Check, Design, Params
from audit.checks.plans import plan_replay
from audit.checks.replay.digest import digest_faults
from audit.checks.replay.full import replay_full
from audit.checks.replay.kept import KeptCheck, check_kept, wrong_share
from audit.checks.replay.partial import replay_partial
from audit.checks.replay.versions import unknown_versions, version_faults
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.shape import shape_fault
from audit.evidence.structure import Violation, structure_faults
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.confidence import percent
from engine.core.types import RecordLevel

NO_KEPT = KeptCheck(0, 0, ())
LOSSY = "the verifier declares itself lossy; no protocol to replay"


@dataclass(frozen=True, slots=True)
class _Replayed:
    """Replay of one request."""

    decisions: int
    recomputed: int
    faults: tuple[Violation, ...]
    kept: KeptCheck = NO_KEPT


def _applies(evidence: Evidence) -> str | None:
    if not evidence.candidate.keyed:
        return NO_KEY
    if not all(request.trace.header.lossless for request in evidence.candidate.requests):
        return LOSSY
    return None


def _foresee(params: Params, design: Design) -> str | None:
    del params
    if not design.keyed:
        return NO_KEY
    return None if design.shown.lossless else LOSSY


def _replay(request: RequestRecord, strange: tuple[Violation, ...]) -> _Replayed:
    trace = request.trace
    damaged = () if request.intact else (Violation(0, "the stored record no longer has the digest stored with it"),)
    fault = shape_fault(trace)
    if fault is not None:
        return _Replayed(max(1, len(trace.token)), 0, (*damaged, Violation(0, fault)))
    kept = check_kept(trace)
    tally = replay_full(trace) if trace.header.level is RecordLevel.FULL else replay_partial(trace)
    # decisions first: a wrong decision explains the contradictions that follow from it
    faults = (
        *damaged,
        *tally.faults,
        *digest_faults(trace),
        # a wrong number changes the choice, so that others would hide its own finding
        *(() if tally.faults else kept.faults),
        *structure_faults(request),
        *version_faults(trace),
        *strange,
    )
    return _Replayed(tally.decisions, tally.recomputed, tuple(sorted(faults, key=lambda each: each.step)), kept)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    requests = evidence.candidate.requests
    strange = unknown_versions(evidence.candidate)
    replayed = [_replay(request, strange.get(request.request_id, ())) for request in requests]
    findings = [
        Finding(request.request_id, fault.step, fault.message)
        for request, each in zip(requests, replayed, strict=True)
        for fault in each.faults
    ]
    decisions, recomputed = sum(each.decisions for each in replayed), sum(each.recomputed for each in replayed)
    broken = sum(1 for each in replayed if each.faults)
    violations = len(findings)
    confidence = float(params["confidence"])
    return CheckResult(
        verdict=_verdict(violations, decisions, recomputed),
        summary=_summary(violations, decisions, recomputed, findings) + _kept_summary(replayed, confidence),
        n=decisions,
        statistic=float(violations),
        effect=violations / decisions if decisions else None,
        bound=upper_bound(min(violations, recomputed), recomputed, confidence) if recomputed else 1.0,
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "decisions": decisions,
            "recomputed": recomputed,
            "coverage": recomputed / decisions if decisions else 0.0,
            "violations": violations,
            "kept_rows": sum(each.kept.rows for each in replayed),
            "kept_of": sum(each.kept.tokens for each in replayed),
            "requests": len(requests),
            "requests_with_violations": broken,
            "request_bound": upper_bound(broken, len(requests), confidence) if requests else 1.0,
        },
    )


def _kept_summary(replayed: Sequence[_Replayed], confidence: float) -> str:
    """What the kept rows prove about the others; empty where no record promises any, or where one is wrong."""
    rows, tokens = sum(each.kept.rows for each in replayed), sum(each.kept.tokens for each in replayed)
    if not tokens or any(each.kept.faults for each in replayed):
        return ""
    if not rows:
        return f"; none of {tokens} rows was kept whole"
    share = wrong_share(rows, tokens, confidence)
    return (
        f"; {rows} of {tokens} rows kept whole agree: at most {share:.2g} of all rows are wrong ({percent(confidence)})"
    )


def _verdict(violations: int, decisions: int, recomputed: int) -> Verdict:
    if violations:
        return Verdict.FAULT
    return Verdict.CERTIFIED if decisions and recomputed == decisions else Verdict.INCONCLUSIVE


def _summary(violations: int, decisions: int, recomputed: int, findings: list[Finding]) -> str:
    if violations:
        first = findings[0]
        more = f"; first in {first.request}, step {first.step}: {first.message}"
        return f"{violations} of {decisions} decisions differ{more}"
    if not decisions:
        return "no decision was recorded"
    if recomputed < decisions:
        return f"{recomputed} of {decisions} decisions can be recomputed at this record level, none of them differs"
    return f"all {decisions} decisions recomputed, none differs"


CHECK = Check(
    name="replay",
    claim="replay",
    needs=Level.L3,
    defaults={"confidence": 0.99, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the engine decided as its declared protocol says",
    effect="share of decisions that differ",
    plan=plan_replay,
    covers=frozenset({Group.DRAFTING, Group.ENDS, Group.PARAMETERS, Group.BATCH, Group.TREES}),
)
