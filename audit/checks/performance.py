"""Performance: the speed-up by speculation on this workload, with intervals.

Claim: cost. Null: the candidate gives at least `min_speedup` times the tokens per second of the baseline, paired by
prompt, a P99 of latency of at most `max_p99_ratio` times the baseline's, and at least `min_tokens_per_forward` tokens
in forward pass of the target, which does not depend on a clock. Statistic and effect: the speed-up, total tokens over
total seconds of requests; bound: its lower 99 % bound (jackknife over prompts, on the logarithm). Also reported: P50
and P99 of both arms and tokens per forward, with intervals. A margin of 0 sets no requirement; without any requirement
the check reports the numbers and the verdict not_run, because there is nothing to certify. Assumes that both arms ran
on an equally busy machine at the same batch size: one run of each can show a gain that comes from the machine. Cannot
see: other hardware, batch sizes and prompts, or where the time was spent.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import Check, Design
from audit.evidence.acceptance import emitted_tokens, target_steps, tokens_per_forward
from audit.evidence.pairing import Pairing, pair_arms
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict, worst
from audit.stats.clusters import ClusterInterval, Timings, quantile_interval, ratio_interval, speed_up
from audit.stats.power import detectable_shift
from engine.core.types import Floats

TIMED = "timed once on a machine whose load is not known"
LEVELS = {"p50": 0.5, "p99": 0.99}
EACH = 0.995
"""Confidence of each of the two intervals behind a ratio of quantiles."""
UNASKED = "no margin required"


@dataclass(frozen=True, slots=True)
class RatioBounds:
    """A ratio and its two bounds, jointly at 99 %."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ArmTimings:
    """One arm's [n] paired requests."""

    tokens: Floats
    seconds: Floats
    steps: Floats
    prompt: NDArray[np.int64]


def _applies(evidence: Evidence) -> str | None:
    if evidence.baseline is None:
        return "there is no baseline arm to compare with"
    if evidence.baseline.taken_over:
        return "the baseline ran another time: a clock compares what runs side by side"
    return None


def _foresee(params: Params, _design: Design) -> str | None:
    asked = ("min_speedup", "max_p99_ratio", "min_tokens_per_forward")
    return None if any(float(params[name]) > 0 for name in asked) else UNASKED


def _sides(pairing: Pairing) -> tuple[ArmTimings, ArmTimings]:
    cases = np.unique([pair.candidate.case_id for pair in pairing.pairs], return_inverse=True)[1].astype(np.int64)
    return (
        _side([pair.candidate for pair in pairing.pairs], cases),
        _side([pair.baseline for pair in pairing.pairs], cases),
    )


def _side(requests: list[RequestRecord], prompt: NDArray[np.int64]) -> ArmTimings:
    return ArmTimings(
        np.array([emitted_tokens(request) for request in requests], dtype=np.float64),
        np.array([request.latency_us for request in requests], dtype=np.float64) / 1e6,
        np.array([target_steps(request) for request in requests], dtype=np.float64),
        prompt,
    )


def _timings(side: ArmTimings) -> Timings:
    return Timings(side.tokens, side.seconds, side.prompt)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    pairing = pair_arms(evidence.candidate, evidence.baseline)
    if not pairing.pairs:
        return CheckResult(Verdict.INCONCLUSIVE, "candidate and baseline share no case")
    ours, theirs = _sides(pairing)
    if min(*ours.seconds, *theirs.seconds, *ours.tokens, *theirs.tokens) <= 0:
        return CheckResult(Verdict.INCONCLUSIVE, "a request has no tokens or no time")
    gain = speed_up(_timings(ours), _timings(theirs), 0.98)
    tail = _p99_ratio(ours, theirs)
    asked = _asked(gain, tail, tokens_per_forward(evidence.candidate.requests, 0.98), params)
    verdict = worst([item for _, item in asked])
    findings = tuple(Finding(POOLED, 0, text) for text, item in asked if item is Verdict.FAULT)
    lengths = ratio_interval(ours.tokens, ours.steps, ours.prompt)
    finite = math.isfinite(gain.se)
    return CheckResult(
        verdict=verdict,
        summary=_summary(gain, lengths, [text for text, _ in asked], len(pairing.unpaired)),
        n=gain.clusters,
        statistic=gain.estimate,
        effect=gain.estimate,
        bound=gain.low if finite else None,
        margin=float(params["min_speedup"]) or None,
        detectable=gain.estimate * math.expm1(detectable_shift(0.01) * gain.se) if finite else None,
        findings=findings,
        details=_details(ours, theirs, gain, tail, lengths) | {"unpaired": list(pairing.unpaired)},
    )


def _asked(
    gain: ClusterInterval, tail: RatioBounds, lengths: ClusterInterval, params: Params
) -> list[tuple[str, Verdict]]:
    least, most = float(params["min_speedup"]), float(params["max_p99_ratio"])
    shortest = float(params["min_tokens_per_forward"])
    asked = []
    if least > 0:
        # one-sided at 99 %: the other end of a speed-up is never a fault
        text = f"speed-up {gain.estimate:.3g}, at least {gain.low:.3g} and at most {gain.high:.3g}, required {least:g}"
        verdict = Verdict.CERTIFIED if gain.low >= least else Verdict.INCONCLUSIVE
        asked.append((text, Verdict.FAULT if gain.high < least else verdict))
    if most > 0:
        text = f"P99 {tail.estimate:.3g} times the baseline's, {tail.low:.3g} to {tail.high:.3g}, allowed {most:g}"
        verdict = Verdict.CERTIFIED if tail.high <= most else Verdict.INCONCLUSIVE
        asked.append((text, Verdict.FAULT if tail.low > most else verdict))
    if shortest > 0:
        text = (
            f"{lengths.estimate:.3g} tokens per forward, at least {lengths.low:.3g} and at most {lengths.high:.3g}, "
            f"required {shortest:.3g}"
        )
        verdict = Verdict.CERTIFIED if lengths.low >= shortest else Verdict.INCONCLUSIVE
        asked.append((text, Verdict.FAULT if lengths.high < shortest else verdict))
    return asked


def _p99_ratio(ours: ArmTimings, theirs: ArmTimings) -> RatioBounds:
    """Ratio of two P99 intervals, each at 99.5 %, so that both hold jointly at 99 %."""
    own, other = (quantile_interval(side.seconds, side.prompt, 0.99, EACH) for side in (ours, theirs))
    low = max(own.low, 0.0) / other.high if math.isfinite(other.high) else 0.0
    high = own.high / other.low if math.isfinite(own.high) and other.low > 0 else math.inf
    return RatioBounds(own.estimate / other.estimate, low, high)


def _summary(gain: ClusterInterval, lengths: ClusterInterval, asked: list[str], unpaired: int) -> str:
    if math.isfinite(gain.se):
        speed = f"speed-up {gain.estimate:.3g} [{gain.low:.3g}, {gain.high:.3g}] over {gain.clusters} prompts"
    else:
        speed = f"speed-up {gain.estimate:.3g} on one prompt, without an interval"
    measured = f"{speed}, {lengths.estimate:.3g} tokens per forward; {TIMED}"
    measured += f"; {unpaired} cases are in one arm only" if unpaired else ""
    return f"{'; '.join(asked)}; {measured}" if asked else f"measured, {UNASKED}: {measured}"


def _details(
    ours: ArmTimings, theirs: ArmTimings, gain: ClusterInterval, tail: RatioBounds, lengths: ClusterInterval
) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        "speed_up": _interval(gain),
        "tokens_per_forward": _interval(lengths),
        "p99_ratio": {"estimate": tail.estimate, "low": tail.low, "high": tail.high if tail.high < math.inf else None},
        "requests": len(ours.tokens),
        "prompts": gain.clusters,
    }
    for arm, side in (("candidate", ours), ("baseline", theirs)):
        for name, level in LEVELS.items():
            mapping[f"{arm}_{name}_seconds"] = _interval(quantile_interval(side.seconds, side.prompt, level))
    return mapping


def _interval(interval: ClusterInterval) -> dict[str, float | None]:
    ends = (interval.low, interval.high)
    low, high = (end if math.isfinite(end) else None for end in ends)
    return {"estimate": interval.estimate, "low": low, "high": high}


CHECK = Check(
    name="performance",
    claim="cost",
    defaults={"min_speedup": 0.0, "max_p99_ratio": 0.0, "min_tokens_per_forward": 0.0},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the candidate reaches the required speed",
    effect="tokens per second over the baseline's",
)
