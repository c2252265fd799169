"""Accounting: counts, lengths, roles, ends and recorded probabilities agree with each other.

Claim: accounting. Null: no request contradicts itself. Statistic: the number of contradictions; any is a fault. Effect
and bound: the share of requests with one, and its 99 % Clopper-Pearson upper bound. Rules, by what is recorded:
structure, lengths of drafts, ends and masks (tokens); probabilities and log-probabilities in their range and compatible
with the recorded lead (`scalars`); the largest scores, and truncation that a token escaped (`topk`); recomputation from
the row (`full`). Assumes nothing about chance: a correct engine cannot break any of these. Cannot see: whether a token,
a row or a random number is correct, or a stop string that ends with the text of an end token. Shares
`engine.sampling.transforms` with the engine.

At level `topk` cells hold the likeliest tokens of p and of q in single precision, and `tail` the mass outside them:
each sum over whole laws lies between what the cells give alone and what they give with the whole tails.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.checks.accounting import rules
from audit.checks.accounting.statements import RecordedBatch, batch_findings, recorded_batch, statement_findings
from audit.checks.base.interface import ByRequest, Check, gives
from audit.evidence.coverage.groups import Group
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord, Evidence, Level, RequestRecord, foreign_tokens
from audit.evidence.structure import Violation
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect
from engine.backends.evidence import Part
from engine.core.types import Floats, RecordLevel
from engine.record.columns import numbered
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace

ROUNDED: Final = 1e-5
"""Absolute rounding of a sum over cells."""


@dataclass(frozen=True, slots=True)
class BoundedSum:
    """[E] a recorded sum, and the least and the largest value that the cells allow; NaN where they say nothing."""

    values: Floats
    least: Floats
    most: Floats


def cell_faults(trace: Trace) -> Iterator[Violation]:
    """The sums of each emitted token that its cells do not allow."""
    steps = numbered(trace.n_emitted).step
    for name, one in _sums(trace).items():
        # a mask that allows one token makes its margin infinite, in the record and in the cells
        slack = np.where(np.isinf(one.least), 0.0, ROUNDED * (1 + np.abs(one.least)))
        with np.errstate(invalid="ignore"):
            outside = ~((one.values >= one.least - slack) & (one.values <= one.most + slack))
        for at in np.flatnonzero(outside & ~(np.isnan(one.least) & np.isnan(one.values))).tolist():
            limits = f"{one.least[at]:.6g} to {one.most[at]:.6g}"
            yield Violation(
                int(steps[at]), f"token {int(trace.token[at])}: {name} {one.values[at]:.10g}, its cells allow {limits}"
            )


def _sums(trace: Trace) -> Mapping[str, BoundedSum]:
    used = trace.cell_id != PAD
    p = np.where(used, trace.cell_p, 0.0).astype(np.float64)
    # a row of cells without a q is NaN, and so is everything that follows from it
    q = np.where(used, trace.cell_q, 0.0).astype(np.float64)
    tail_p, tail_q = 1.0 - p.sum(axis=1), 1.0 - q.sum(axis=1)
    own = used & (trace.cell_id == trace.token[:, None])
    idle_p, idle_q = (np.where(used, 0.0, np.abs(cells)).sum(axis=1) for cells in (trace.cell_p, trace.cell_q))
    before = used & (trace.cell_id < trace.token[:, None])
    held = np.where(own, q, 0.0).sum(axis=1) + 0.0 * tail_q
    product, more = (p * q).sum(axis=1), np.maximum(p - q, 0.0)
    surplus, below = more.sum(axis=1), np.where(before, more, 0.0).sum(axis=1) + 0.0 * tail_q
    with np.errstate(invalid="ignore"):
        lead = trace.top_score[:, 0] - trace.top_score[:, 1]
    return {
        "unused p": BoundedSum(idle_p, 0.0 * idle_p, 0.0 * idle_p),
        "unused q": BoundedSum(idle_q + 0.0 * tail_q, 0.0 * tail_q, 0.0 * tail_q),
        "tail 0": BoundedSum(trace.tail[:, 0], tail_p, tail_p),
        "tail 1": BoundedSum(trace.tail[:, 1], tail_q, tail_q),
        "q_token": BoundedSum(trace.q_token, held, np.where(own.any(axis=1), held, tail_q)),
        "product": BoundedSum(trace.product, product, product + tail_p * tail_q),
        "residual_below": BoundedSum(trace.residual_below, below, below + tail_p),
        "residual_sum": BoundedSum(trace.residual_sum, surplus + np.maximum(tail_p - tail_q, 0.0), surplus + tail_p),
        "top_lse": _score_sum(trace),
        "margin": BoundedSum(trace.margin, lead, lead),
    }


def _score_sum(trace: Trace) -> BoundedSum:
    """The logarithm of the sum over all scores: at least that of the largest, at most with all others as the least."""
    scores = trace.top_score / (trace.header.sampling.temperature or 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.logaddexp.reduce(scores, axis=1)
        others = np.log(np.maximum(trace.header.vocabulary - scores.shape[1], 0)) + scores[:, -1]
    return BoundedSum(trace.top_lse, least, np.logaddexp(least, others))


def _applies(evidence: Evidence) -> str | None:
    return next((why for why in map(foreign_tokens, evidence.candidate.requests) if why is not None), None)


def faults_of(reading: RequestReading) -> list[Violation]:
    """Every contradiction of one request that its arm's evidence level can show, by step."""
    request, arm = reading.request, reading.arm
    if reading.shape_fault is not None:
        return [Violation(0, reading.shape_fault)]
    trace = request.trace
    result = [*reading.structure_faults, *rules.length_faults(trace, arm.effective), *rules.text_faults(request)]
    if trace.header.lossless:
        result.extend(rules.mask_faults(trace))
    # another engine computes p in its own precision: check honoured compares that p with the row
    result.extend(_recorded_faults(request, arm.level, arm.ours))
    return sorted(result, key=lambda item: item.step)


@dataclass(frozen=True, slots=True)
class _Contradictions:
    request: str
    faults: tuple[Violation, ...]
    batch: RecordedBatch | None


def _read(reading: RequestReading) -> _Contradictions:
    request = reading.request
    batch = recorded_batch(request) if reading.arm.ours and reading.shape_fault is None else None
    return _Contradictions(request.request_id, tuple(faults_of(reading)), batch)


def _recorded_faults(request: RequestRecord, level: Level, ours: bool) -> Iterator[Violation]:
    trace, recorded = request.trace, request.trace.header.level
    if recorded is not RecordLevel.TOKENS and level >= Level.L1:
        yield from rules.number_faults(trace, ours=ours)
    if recorded is RecordLevel.TOPK and level >= Level.L2:
        yield from rules.top_faults(trace, ours=ours)
        yield from cell_faults(trace) if ours else ()
    if recorded is RecordLevel.FULL and level >= Level.L2:
        yield from rules.row_faults(trace, ours=ours)
        yield from rules.one_hot_faults(trace)


def _repeated(arm: ArmRecord) -> Iterator[Finding]:
    """A finding for each case that the arm answers twice."""
    counts = Counter(request.key for request in arm.requests)
    for request in arm.requests:
        if counts.pop(request.key, 1) > 1:
            yield Finding(request.request_id, 0, f"{request.key} is in the arm more than once")


class _Accounting:
    def __init__(self, evidence: Evidence, params: Params) -> None:
        self._evidence, self._arm, self._params = evidence, evidence.candidate, params
        self._found: dict[str, tuple[Violation, ...]] = {}
        self._batches: list[RecordedBatch] = []

    def add(self, part: _Contradictions) -> None:
        """Take the contradictions of the next request."""
        self._found[part.request] = part.faults
        if part.batch is not None:
            self._batches.append(part.batch)

    def result(self) -> CheckResult:
        """The check's result."""
        arm = self._arm
        tokens = sum(len(request.tokens) for request in arm.requests)
        if not tokens:
            return CheckResult(Verdict.INCONCLUSIVE, "the arm has no requests with tokens")
        findings = [
            *_repeated(arm),
            *(statement_findings(self._evidence) if arm.ours else ()),
            *batch_findings(arm, self._batches),
            *(Finding(name, item.step, item.message) for name, outcome in self._found.items() for item in outcome),
        ]
        return _result(arm, self._params, tokens, findings)


def _result(arm: ArmRecord, params: Params, tokens: int, findings: list[Finding]) -> CheckResult:
    broken = len({finding.request for finding in findings})
    requests = len(arm.requests)
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED,
        summary=_summary(findings, arm, tokens),
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
            "gamma": arm.effective.gamma,
            "steady_drafts": arm.effective.steady_drafts is not None,
            "record_levels": sorted({str(request.trace.header.level) for request in arm.requests}),
        },
    )


def _summary(findings: list[Finding], arm: ArmRecord, tokens: int) -> str:
    if findings:
        first = findings[0]
        return f"{len(findings)} contradictions; first in {first.request}, step {first.step}: {first.message}"
    text = f"{len(arm.requests)} requests with {tokens} tokens, no contradiction"
    unknown = [] if arm.effective.gamma is not None else ["the draft length is not known"]
    silent = arm.level < Level.L1 or any(request.trace.header.level is RecordLevel.TOKENS for request in arm.requests)
    unknown += ["probabilities are not recorded"] if silent else []
    return "; ".join([text, *unknown])


BY_REQUEST = ByRequest(_read, _Accounting)
CHECK = Check(
    name="accounting",
    claim="accounting",
    defaults={"confidence": 0.99, "max_findings": 20},
    run=BY_REQUEST.run,
    by_request=BY_REQUEST,
    applies=_applies,
    foresee=gives(Part.TOKENS, "the engine names no tokens, or its end tokens are not known"),
    null="no request contradicts itself",
    effect="share of requests with a contradiction",
    covers=frozenset({Group.DRAFTING, Group.ENDS}),
)
