"""Long context: what holds of short contexts holds up to the longest that the target reads.

Claim: contexts. Null: at every length of the context the candidate's tokens are the baseline's (temperature 0, and the
gumbel rule), or else they follow the recorded p and drafts are kept as often as p, q and the rule say. The tokens
before each token, prompt included, put it into a bucket: 0-63, 64-127, 128-255 and so on, up to the target's maximum.
Every bucket is judged by itself; a pooled result would be that of the lengths with the most tokens. Statistic: real
divergences by the context in which they begin, any of which is a fault; tests of the law and of acceptance in each
bucket, Holm-adjusted over all of them. Effect and bound: the largest of a bucket, as share of tokens, total variation
per token or difference in rate. Certified: every bucket from the shortest prompt on has its tokens and its bounds
within the margin, and an answer comes close to the maximum. Cannot see: at a temperature above 0 a target whose rows
are wrong beyond a length but which decides by them (see anchor), and a draft that is merely poor there (see
draft_anchor).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from audit.checks.base.interface import Check, Design, examine_all
from audit.checks.long_context.measures import (
    Bucket,
    Kind,
    Measure,
    acceptance,
    all_greedy,
    buckets_up_to,
    contexts_of,
    equality,
    kinds_of,
    law,
    longest,
    maximum_of,
)
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import Examined, Group
from audit.evidence.decisions import unreadable
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import MAX_FINDINGS, POOLED, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.multiplicity import holm
from audit.stats.power import POWER, replay_effect
from audit.stats.sample_size import SampleSize

LOSSY: Final = "the verifier declares itself lossy; its tokens need be neither the target's nor of its law"
ALONE: Final = "there is no baseline arm to compare with"
USUAL: Final = 1024
"""The maximum that a plan assumes: that of the bundled models."""


def _applies(evidence: Evidence) -> str | None:
    headers = [request.trace.header for request in evidence.candidate.requests]
    if not all(header.lossless for header in headers):
        return LOSSY
    kinds = {kind for header in headers for kind in kinds_of(header.protocol, header.sampling.greedy)}
    if Kind.EQUALITY in kinds:
        return NoEvidence(ALONE) if evidence.baseline is None else None
    return _too_low(evidence.candidate.level)


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.shown.lossless:
        return LOSSY
    compares = Kind.EQUALITY in kinds_of(design.shown.protocol, design.greedy)
    return None if compares else _too_low(design.level)


def _too_low(level: Level) -> NoEvidence | None:
    reason = f"at a temperature above 0 it needs evidence {Level.L3.name}, the arm has {level.name}"
    return NoEvidence(reason) if level < Level.L3 else None


@dataclass(frozen=True, slots=True)
class BucketVerdict:
    """One bucket with what was measured in it; `lacks` says why it is undecided, None if it is not."""

    bucket: Bucket
    measures: tuple[Measure, ...]
    tokens: int
    findings: tuple[Finding, ...]
    lacks: str | None

    @property
    def verdict(self) -> Verdict:
        """The verdict on contexts of these lengths."""
        if self.findings:
            return Verdict.FAULT
        return Verdict.CERTIFIED if self.lacks is None else Verdict.INCONCLUSIVE


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    kinds = {
        kind for request in arm.requests for kind in kinds_of(request.trace.header.protocol, all_greedy(arm.requests))
    }
    reason = None if Kind.EQUALITY in kinds else unreadable(arm, cells=True) or shared_numbers(arm)
    if reason is not None:
        return CheckResult(Verdict.INCONCLUSIVE, reason)
    maximum, reached = maximum_of(arm, int(params["maximum"])), longest(arm.requests)
    every = buckets_up_to(max(maximum or 0, reached))
    shortest = min(len(request.trace.header.prompt) for request in arm.requests)
    result = tuple(item for item in every if item.high > shortest)
    measured = _measured(evidence, result, kinds, float(params["confidence"]))
    departures = _departures(measured, float(params["alpha"]))
    judged = [_judged(item, measured, departures, evidence, params) for item in result]
    return _result(judged, measured, _too_short(maximum, reached, params), params)


Measured = Mapping[Bucket, tuple[Measure, ...]]


def _measured(evidence: Evidence, buckets: Sequence[Bucket], kinds: set[Kind], confidence: float) -> Measured:
    requests, made = evidence.candidate.requests, []
    if Kind.EQUALITY in kinds:
        made.append(equality(evidence, buckets, confidence))
    if Kind.LAW in kinds:
        made.append(law(requests, buckets, confidence, np.random.default_rng(seed_of(requests))))
    if Kind.ACCEPTANCE in kinds:
        made.append(acceptance(requests, buckets, confidence))
    return {bucket: tuple(item[bucket] for item in made) for bucket in buckets}


def _departures(measured: Measured, alpha: float) -> dict[Bucket, list[Finding]]:
    """The rejected tests of each bucket, adjusted over all buckets."""
    tests = [(bucket, test) for bucket, measures in measured.items() for measure in measures for test in measure.tests]
    adjusted = holm([test.p for _, test in tests])
    rejected: dict[Bucket, list[Finding]] = {bucket: [] for bucket in measured}
    for (bucket, test), p in zip(tests, adjusted, strict=True):
        if p < alpha:
            message = f"context {bucket.name}: {test.name}: effect {test.effect:.3g} {test.unit}, adjusted p {p:.2g}"
            rejected[bucket].append(Finding(POOLED, 0, message))
    return rejected


def _judged(
    bucket: Bucket,
    measured: Measured,
    departures: Mapping[Bucket, Sequence[Finding]],
    evidence: Evidence,
    params: Params,
) -> BucketVerdict:
    measures = measured[bucket]
    tokens = sum(int(bucket.has(contexts_of(request)).sum()) for request in evidence.candidate.requests)
    findings = (*(one for measure in measures for one in measure.findings), *departures[bucket])
    return BucketVerdict(bucket, measures, tokens, findings, next(_lacking(measures, params), None))


def _lacking(measures: Sequence[Measure], params: Params) -> Iterator[str]:
    """Why a bucket is undecided."""
    margin, least = float(params["margin"]), int(params["min_tokens"])
    for measure in measures:
        needed = 1 if measure.kind is Kind.ACCEPTANCE else least
        if measure.n < needed:
            what = "decisions" if measure.kind is Kind.ACCEPTANCE else "tokens"
            yield f"{measure.n} {what} for {measure.kind}, {needed} are needed"
        elif measure.unclear:
            yield f"{measure.unclear} differences that no control attributes"
        elif measure.bound is None or measure.bound > margin:
            bound = "unknown" if measure.bound is None else f"{measure.bound:.2g}"
            yield f"{measure.kind} has the bound {bound}, above {margin:g}"


def _too_short(maximum: int | None, reached: int, params: Params) -> str | None:
    """Why the longest context on record proves too little; None if it comes close to the maximum."""
    if maximum is None:
        return "the engine does not say the target's maximum; set maximum"
    near = maximum - int(params["slack"])
    return None if reached >= near else f"the longest context is {reached} of {maximum}; add prompts of {near} or more"


def _result(judged: Sequence[BucketVerdict], measured: Measured, short: str | None, params: Params) -> CheckResult:
    findings = [one for item in judged for one in item.findings]
    open_ones = [item for item in judged if item.verdict is Verdict.INCONCLUSIVE]
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE if open_ones or short else Verdict.CERTIFIED
    every = [measure for measures in measured.values() for measure in measures]
    bounds = [item.bound for item in every if item.bound is not None]
    effects = [abs(item.effect) for item in every if item.effect is not None]
    tokens = sum(item.tokens for item in judged)
    return CheckResult(
        verdict=verdict,
        summary=_summary(judged, short, tokens),
        n=tokens,
        statistic=float(len(findings)),
        effect=max(effects, default=None),
        bound=max(bounds, default=None),
        margin=float(params["margin"]),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={"buckets": [_row(item) for item in judged]},
    )


def _summary(judged: Sequence[BucketVerdict], short: str | None, tokens: int) -> str:
    faulty = [item.bucket.name for item in judged if item.findings]
    open_ones = [f"{item.bucket.name}: {item.lacks}" for item in judged if item.verdict is Verdict.INCONCLUSIVE]
    if faulty:
        clean = [item.bucket.name for item in judged if item.verdict is Verdict.CERTIFIED]
        beside = f"; as they should be at {', '.join(clean)}" if clean else ""
        first = next(item.findings[0].message for item in judged if item.findings)
        return f"wrong at contexts of {', '.join(faulty)} tokens{beside}; {first}"
    if open_ones or short:
        return f"no departure in {tokens} tokens; undecided: {'; '.join([*open_ones, *([short] if short else [])])}"
    return f"no departure in {tokens} tokens at contexts of {', '.join(item.bucket.name for item in judged)}"


def _row(verdict: BucketVerdict) -> dict[str, Any]:
    measures = {
        str(one.kind): {"n": one.n, "effect": one.effect, "bound": one.bound, "unclear": one.unclear}
        for one in verdict.measures
    }
    return {
        "context": verdict.bucket.name,
        "verdict": str(verdict.verdict),
        "tokens": verdict.tokens,
        "lacks": verdict.lacks,
        **measures,
    }


def _plan(params: Params, _design: Design) -> SampleSize:
    """Tokens until every bucket has its own; they must be spread over all of them."""
    least = int(params["min_tokens"])
    units = least * len(buckets_up_to(int(params["maximum"]) or USUAL))
    return SampleSize(units, "tokens", replay_effect(least), 0.0, POWER)


def _examines(evidence: Evidence) -> Examined:
    compares = any(
        Kind.EQUALITY in kinds_of(request.trace.header.protocol, request.trace.header.sampling.greedy)
        for request in evidence.candidate.requests
    )
    return until_parted(evidence) if compares else examine_all(evidence)


CHECK = Check(
    name="long_context",
    claim="contexts",
    defaults={"margin": 0.1, "alpha": 0.001, "confidence": 0.99, "min_tokens": 200, "maximum": 0, "slack": 16},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="tokens are the baseline's, or follow p and are accepted by the rule, at every length of the context",
    effect="largest share, total variation or difference in rate of a bucket",
    plan=_plan,
    covers=frozenset({Group.CONTEXTS}),
    examines=_examines,
)
