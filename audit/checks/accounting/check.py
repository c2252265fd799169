"""Accounting: counts, lengths, roles, ends and recorded probabilities agree with each other.

Claim: accounting. Null: no request contradicts itself. Statistic: the number of
contradictions; any is a fault. Effect and bound: the share of requests with one,
and its 99 % Clopper-Pearson upper bound. Rules, by what is recorded: structure,
lengths of drafts, ends and masks (tokens); probabilities and log-probabilities in their
range and compatible with the recorded lead (`scalars`); the largest scores, and
truncation that a token escaped (`topk`); recomputation from the row (`full`).
Assumes nothing about chance: a correct engine cannot break any of these. Cannot
see: whether a token, a row or a random number is correct, or a stop string that
ends with the text of an end token. Shares `engine.sampling.transforms` with the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from audit.checks.accounting.lengths import DeclaredLengths, declared, length_faults
from audit.checks.accounting.rules import mask_faults, number_faults, row_faults, text_faults, top_faults
from audit.checks.interface import Check, Design, Params, needs_nothing
from audit.evidence.coverage.groups import Group
from audit.evidence.origin import foreign_tokens
from audit.evidence.records import ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.shape import shape_fault
from audit.evidence.structure import Violation, structure_faults
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect
from engine.backends.evidence import Part
from engine.core.types import RecordLevel


def _applies(evidence: Evidence) -> str | None:
    return next((why for why in map(foreign_tokens, evidence.candidate.requests) if why is not None), None)


def _foresee(params: Params, design: Design) -> str | None:
    del params
    return None if design.shown.gives(Part.TOKENS) else "the engine names no tokens, or its end tokens are not known"


def faults_of(request: RequestRecord, level: Level, lengths: DeclaredLengths, *, ours: bool = True) -> list[Violation]:
    """Every contradiction of one request that this evidence level can show, by step.

    `ours` is false for p computed by another engine in its own precision: check honoured compares that p with the row.
    """
    trace = request.trace
    fault = shape_fault(trace)
    if fault is not None:
        return [Violation(0, fault)]
    found = [*structure_faults(request), *length_faults(trace, lengths), *text_faults(request)]
    if trace.header.lossless:
        found.extend(mask_faults(trace))
    found.extend(_recorded_faults(request, level, ours))
    return sorted(found, key=lambda each: each.step)


def _recorded_faults(request: RequestRecord, level: Level, ours: bool) -> Iterator[Violation]:
    trace, recorded = request.trace, request.trace.header.level
    if recorded is not RecordLevel.TOKENS and level >= Level.L1:
        yield from number_faults(trace, ours=ours)
    if recorded is RecordLevel.TOPK and level >= Level.L2:
        yield from top_faults(trace, ours=ours)
    if recorded is RecordLevel.FULL and level >= Level.L2:
        yield from row_faults(trace, ours=ours)


def _repeated(arm: ArmRecord) -> Iterator[Finding]:
    """A finding for each case that the arm answers twice."""
    counts = Counter(request.key for request in arm.requests)
    for request in arm.requests:
        if counts.pop(request.key, 1) > 1:
            yield Finding(request.request_id, 0, f"{request.key} is in the arm more than once")


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    tokens = sum(len(request.tokens) for request in arm.requests)
    if not tokens:
        return CheckResult(Verdict.INCONCLUSIVE, "the arm has no requests with tokens")
    lengths = declared(arm.effective)
    by_request = {each.request_id: faults_of(each, arm.level, lengths, ours=arm.ours) for each in arm.requests}
    findings = [
        *_repeated(arm),
        *(Finding(name, each.step, each.message) for name, found in by_request.items() for each in found),
    ]
    broken = len({each.request for each in findings})
    requests = len(arm.requests)
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED,
        summary=_summary(findings, arm, tokens, lengths),
        n=requests,
        statistic=float(len(findings)),
        effect=broken / requests,
        bound=upper_bound(min(broken, requests), requests, float(params["confidence"])),
        detectable=replay_effect(requests),
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "contradictions": len(findings),
            "requests_with_contradictions": broken,
            "tokens": tokens,
            "gamma": lengths.gamma,
            "steady_drafts": lengths.steady is not None,
            "record_levels": sorted({str(request.trace.header.level) for request in arm.requests}),
        },
    )


def _summary(findings: list[Finding], arm: ArmRecord, tokens: int, lengths: DeclaredLengths) -> str:
    if findings:
        first = findings[0]
        return f"{len(findings)} contradictions; first in {first.request}, step {first.step}: {first.message}"
    text = f"{len(arm.requests)} requests with {tokens} tokens, no contradiction"
    unknown = [] if lengths.gamma is not None else ["the draft length is not known"]
    silent = arm.level < Level.L1 or any(each.trace.header.level is RecordLevel.TOKENS for each in arm.requests)
    unknown += ["probabilities are not recorded"] if silent else []
    return "; ".join([text, *unknown])


CHECK = Check(
    name="accounting",
    claim="accounting",
    needs=Level.L0,
    defaults={"confidence": 0.99, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="no request contradicts itself",
    effect="share of requests with a contradiction",
    plan=needs_nothing,
    covers=frozenset({Group.DRAFTING, Group.ENDS}),
)
