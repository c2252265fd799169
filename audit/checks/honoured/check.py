"""Honoured: the engine's own probabilities follow the requested sampling parameters.

Claim: parameters. Null: the probability that the engine's verifier used for a token is the raw row's under the
request's temperature, truncation, bias, masks and penalties. Statistic: probabilities that differ from ours by more
than `tolerance`, per kind of row, because engines prepare drafted rows and the others by different code. Effect and
bound: the share in the worst kind, with Clopper-Pearson bounds at `alpha`; a few differ where rounding moves a token
across the edge of a truncation. If a kind is wrong, the check tries the transforms with one parameter left out and
names the one that explains it. Assumes that the raw rows are the target's. Cannot see: an engine that computes the
right probability and decides by another (law, replay), rows of greedy requests (greedy_equality), or anything that the
engine does not report.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.checks.honoured.causes import TokenComparison, cause, compared_rows
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import lower_bound, upper_bound
from audit.stats.power import replay_effect, zero_need
from audit.stats.sample_size import SampleSize
from engine.core.types import RecordLevel

KINDS = ("drafted", "other")
"""Rows of drafted places, and bonus or plain rows."""
SCARCEST = 0.2
"""Share of the scarcer kind that a plan expects; the bundled pair gives 0.08 (draft model) to 0.35 (n-gram)."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """All rows of one kind: n compared, and which of them differ."""

    name: str
    n: int
    wrong: tuple[TokenComparison, ...]

    @property
    def share(self) -> float:
        """Share of the compared rows that differ."""
        return len(self.wrong) / self.n if self.n else 0.0


GREEDY = "a greedy row has no probabilities; see greedy_equality"


def _applies(evidence: Evidence) -> str | None:
    requests = evidence.candidate.requests
    if not len(requests):
        return NoEvidence("the arm has no requests")
    header = requests[0].trace.header
    if header.sampling.greedy:
        return GREEDY
    if header.level not in (RecordLevel.TOPK, RecordLevel.FULL):
        return NoEvidence(f"recorded at level {header.level}: the rows are not there")
    return None


def _run(evidence: Evidence, params: Params) -> CheckResult:
    kinds = _kinds(evidence, float(params["tolerance"]))
    n = sum(kind.n for kind in kinds)
    if not n:
        return CheckResult(Verdict.INCONCLUSIVE, "the engine reported no probability of its own")
    worst, scarcest = max(kinds, key=lambda kind: kind.share), min(kind.n for kind in kinds if kind.n)
    low = lower_bound(len(worst.wrong), worst.n, 1.0 - float(params["alpha"]) / len(KINDS)) if worst.n else 0.0
    bound = max(upper_bound(len(kind.wrong), kind.n) for kind in kinds if kind.n)
    margin = float(params["margin"])
    verdict = Verdict.FAULT if low > margin else Verdict.CERTIFIED if bound <= margin else Verdict.INCONCLUSIVE
    reasons = {kind.name: cause(kind.wrong) for kind in kinds if kind.wrong}
    return CheckResult(
        verdict=verdict,
        summary=_summary(kinds, reasons, bound),
        n=n,
        statistic=float(sum(len(kind.wrong) for kind in kinds)),
        effect=worst.share,
        bound=bound,
        margin=margin,
        detectable=replay_effect(scarcest),
        findings=_findings(kinds, verdict),
        details={"kinds": [_detail(kind, reasons) for kind in kinds], "scarcest": scarcest / n},
    )


def _kinds(evidence: Evidence, tolerance: float) -> tuple[RowKind, ...]:
    counts, wrong = dict.fromkeys(KINDS, 0), {name: list[TokenComparison]() for name in KINDS}
    for request in evidence.candidate.requests:
        for name, drafted in zip(KINDS, (True, False), strict=True):
            n, different = compared_rows(request, drafted=drafted, tolerance=tolerance)
            counts[name] += n
            wrong[name] += different
    return tuple(RowKind(name, counts[name], tuple(wrong[name])) for name in KINDS)


def _summary(kinds: Sequence[RowKind], reasons: dict[str, str], bound: float) -> str:
    if not reasons:
        return f"{sum(kind.n for kind in kinds)} probabilities are those of the request's parameters, bound {bound:.2g}"
    sentences = (
        f"{len(kind.wrong)} of {kind.n} probabilities of {kind.name} rows are not those of the request's parameters"
        + (f" ({reasons[kind.name]})" if kind.name in reasons else "")
        for kind in kinds
        if kind.n
    )
    return "; ".join(sentences)


def _findings(kinds: Sequence[RowKind], verdict: Verdict) -> tuple[Finding, ...]:
    if verdict is not Verdict.FAULT:
        return ()
    every = (Finding(item.request, item.step, item.message(kind.name)) for kind in kinds for item in kind.wrong)
    return tuple(every)[:MAX_FINDINGS]


def _detail(kind: RowKind, reasons: dict[str, str]) -> dict[str, Any]:
    largest = max((abs(item.said - item.asked) for item in kind.wrong), default=0.0)
    return {
        "rows": kind.name,
        "n": kind.n,
        "wrong": len(kind.wrong),
        "largest": float(np.round(largest, 6)),
        "cause": reasons.get(kind.name),
    }


def _plan(params: Params, design: Design) -> SampleSize | None:
    if design.greedy:
        return None
    need = zero_need(float(params["margin"]), "positions")
    return replace(need, units=math.ceil(need.units / (design.assumed.scarcest or SCARCEST)))


CHECK = Check(
    name="honoured",
    claim="parameters",
    needs=Level.L3,
    defaults={"tolerance": 0.002, "alpha": 0.001, "margin": 0.05},
    run=_run,
    applies=_applies,
    foresee=lambda _params, design: GREEDY if design.greedy else None,
    null="the engine's probabilities are those of the request's parameters",
    effect="share of probabilities that are not",
    plan=_plan,
    covers=frozenset({Group.PARAMETERS, Group.BATCH}),
)
