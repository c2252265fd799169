"""Gamma invariance: another draft length changes only the speed.

Claim: equality. Null, at temperature 0 and under shared randomness: the tokens are the same at every draft length, up
to the engine's noise; statistic: requests that differ for real between the candidate and its companion `regamma`, any
is a fault; effect and bound: their share, with the 99 % Clopper-Pearson upper bound. Null under rejection: the
companion's tokens follow p as the candidate's do. Statistic: the law battery on the companion, and the paired
difference in mean log-probability between the two arms by prompt, Holm-adjusted; effect and bound: the leak towards the
draft in total variation per token. The two arms use the same random numbers for other decisions: they are dependent, so
they are compared in pairs and never as two samples. Assumes the row of each token is right. Cannot see: faults that
both lengths share (see law and the equality checks), and departures below the printed detectable effect.
"""

import math
from dataclasses import dataclass

import numpy as np

from audit.checks import load
from audit.checks.base.interface import Check, Design, evaluate
from audit.checks.base.plans import plan_requests
from audit.evidence.divergence.rerun import Rerun, compare
from audit.evidence.pairing import Pair, pair_arms
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import MAX_FINDINGS, POOLED, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.clusters import ClusterInterval, mean_interval
from audit.stats.laws import t_sf
from audit.stats.multiplicity import holm
from audit.stats.power import replay_effect

LEAST_PAIRS = 8
"""With fewer pairs the t law says little."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Mean log-probability at the other length minus the candidate's, paired by request."""

    interval: ClusterInterval
    p: float


LOSSY = "the verifier declares itself lossy; its law may depend on the draft length"
TOO_LITTLE = NoEvidence("under rejection the law at another draft length needs evidence L3")


def _applies(evidence: Evidence) -> str | None:
    if ArmKind.OTHER_GAMMA not in evidence.companions:
        return NoEvidence("there is no arm regamma to compare with")
    if not all(request.trace.header.lossless for request in evidence.candidate.requests):
        return LOSSY
    if not _coupled(evidence) and evidence.companions[ArmKind.OTHER_GAMMA].level < Level.L3:
        return TOO_LITTLE
    return None


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.shown.lossless:
        return LOSSY
    return None if design.repeats or design.level >= Level.L3 else TOO_LITTLE


def _coupled(evidence: Evidence) -> bool:
    """True if the tokens depend only on the target and the seed."""
    return all(request.trace.header.repeats for request in evidence.candidate.requests)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    return _judge_tokens(evidence, params) if _coupled(evidence) else _judge_law(evidence, params)


def _judge_tokens(evidence: Evidence, params: Params) -> CheckResult:
    request = compare(evidence, ArmKind.OTHER_GAMMA)
    if request.problem is not None or not request.pairs:
        return CheckResult(Verdict.INCONCLUSIVE, request.problem or "no shared request")
    real = request.count("real")
    bound = upper_bound(real, request.pairs, float(params["confidence"]))
    verdict, reason = _decide(request, bound, params)
    ordered = sorted(request.differences, key=lambda item: item.kind != "real")
    counts = {kind: request.count(kind) for kind in ("real", "untriaged", "numerical")}
    return CheckResult(
        verdict=verdict,
        summary=f"{reason}: {request.pairs} requests at {_lengths(evidence)}, {counts['real']} differ for real, "
        f"{counts['numerical']} numerically; at most {bound:.3g} of requests do",
        n=request.pairs,
        statistic=float(real),
        effect=real / request.pairs,
        bound=bound,
        margin=float(params["margin"]),
        detectable=replay_effect(request.pairs),
        findings=tuple(item.finding(ArmKind.OTHER_GAMMA) for item in ordered[:MAX_FINDINGS]),
        details={"tokens": request.tokens, "differ": counts, "unpaired": list(request.unpaired)},
    )


def _decide(rerun: Rerun, bound: float, params: Params) -> tuple[Verdict, str]:
    if rerun.count("real"):
        return Verdict.FAULT, "the draft length changes the tokens"
    if rerun.count("untriaged"):
        return Verdict.INCONCLUSIVE, "differences cannot be triaged"
    if rerun.unpaired:
        return Verdict.INCONCLUSIVE, f"the candidate lacks case {rerun.unpaired[0]}"
    if bound > float(params["margin"]):
        return Verdict.INCONCLUSIVE, f"too few requests for the margin {params['margin']:g}"
    return Verdict.CERTIFIED, "the same tokens up to noise"


def _judge_law(evidence: Evidence, params: Params) -> CheckResult:
    companion = evidence.companions[ArmKind.OTHER_GAMMA]
    alpha = float(params["alpha"])
    result = evaluate(
        load("law"),
        Evidence(companion),
        {"alpha": alpha, **{key: params[key] for key in ("leak_margin", "min_tokens", "confidence")}},
    )
    if result.p_value is None or result.effect is None:
        return CheckResult(Verdict.INCONCLUSIVE, f"at {_lengths(evidence)}: {result.summary}")
    pairs = pair_arms(evidence.candidate, companion).pairs
    contrast = paired_contrast(pairs)
    adjusted = holm([result.p_value, contrast.p])
    findings = list(result.findings) if adjusted[0] < alpha else []
    if adjusted[1] < alpha:
        findings.append(_contrast_finding(contrast, float(adjusted[1])))
    detectable = float(result.details["leak"]["tv_detectable"])
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE
    if not findings and result.verdict is Verdict.CERTIFIED:
        verdict = Verdict.CERTIFIED
    change = contrast.interval
    finite = math.isfinite(change.low) and math.isfinite(change.high)
    return CheckResult(
        verdict=verdict,
        summary=f"at {_lengths(evidence)}: {result.summary}; detectable leak {detectable:.3g}; mean log-probability "
        + (f"{change.estimate:+.3g} in {len(pairs)} pairs" if finite else "not compared, too few pairs"),
        n=result.n,
        statistic=result.statistic,
        p_value=float(adjusted.min()),
        effect=result.effect,
        bound=result.bound,
        margin=float(params["leak_margin"]),
        detectable=detectable,
        findings=tuple(findings[:MAX_FINDINGS]),
        details={
            "law": dict(result.details),
            "pairs": len(pairs),
            "logprob_change": [change.estimate, change.low, change.high] if finite else None,
            "logprob_change_p": contrast.p,
        },
    )


def paired_contrast(pairs: tuple[Pair, ...]) -> Contrast:
    """The contrast with its t test; requests of one prompt are one cluster."""
    used = [pair for pair in pairs if len(pair.candidate.trace.logprob) and len(pair.baseline.trace.logprob)]
    if not used:
        return Contrast(ClusterInterval(0.0, -np.inf, np.inf, np.inf, 0, 0, np.nan), 1.0)
    change = np.array([pair.baseline.trace.logprob.mean() - pair.candidate.trace.logprob.mean() for pair in used])
    cases = np.unique([pair.candidate.case_id for pair in used], return_inverse=True)[1].astype(np.int64)
    interval = mean_interval(change, cases)
    if interval.clusters < LEAST_PAIRS or not 0.0 < interval.se < np.inf:
        return Contrast(interval, 1.0)
    return Contrast(interval, float(2.0 * t_sf(abs(interval.estimate) / interval.se, interval.clusters - 1)))


def _contrast_finding(contrast: Contrast, adjusted: float) -> Finding:
    result = contrast.interval
    message = (
        f"mean log-probability changes by {result.estimate:.4g} [{result.low:.4g}, {result.high:.4g}] with the draft "
        f"length, adjusted p {adjusted:.2g}, {result.clusters} prompts"
    )
    return Finding(POOLED, 0, message)


def _lengths(evidence: Evidence) -> str:
    arms = (evidence.candidate, evidence.companions[ArmKind.OTHER_GAMMA])
    ours, theirs = ("unknown" if arm.effective.gamma is None else arm.effective.gamma for arm in arms)
    shared = ", with a proposer that learns" if evidence.candidate.effective.shares_state else ""
    return f"draft length {theirs} beside {ours}{shared}"


CHECK = Check(
    name="gamma_invariance",
    claim="equality",
    defaults={"margin": 0.3, "confidence": 0.99, "alpha": 0.001, "leak_margin": 0.1, "min_tokens": 500},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="tokens, or under rejection their law, do not depend on the draft length",
    effect="share of requests that differ; under rejection total variation per token",
    plan=lambda params, design: plan_requests(params, design) if design.repeats else None,
    companions=(ArmKind.OTHER_GAMMA,),
)
