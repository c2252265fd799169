"""Log-probability closeness: the candidate reports the target's log-probabilities for its tokens.

Claim: closeness. Null: at equal prefixes the reported log-probabilities of equal tokens differ from the reference's by
no more than `margin` on average, or by `times_floor` of what two plain runs differ by (the A/A floor), and have no
systematic shift above `bias_margin` or the floor. References: the baseline, where the tokens have to be equal
(temperature 0, shared randomness), and the anchor arm, which reads the candidate's own tokens; of prompts, where they
were requested, the anchor arm or else the baseline. Statistic: mean absolute and mean signed difference in nats; effect
and bound: the mean absolute one with its 99 % upper bound, of the worse reference. Intervals are cluster-robust, with
the prompt as unit. A single difference above `max_single` and ten times the floor's largest is a fault by itself. Plain
decoding is measured against the reference too: by the noise arm, or by the anchor arm at tokens that the baseline has
as well. A single difference above ten times that and `least_single` is a fault; plain decoding that is anywhere further
away than `most_noise`, or in 16 bits further than `half_noise` on average, is no rounding and certifies nothing;
rounding counts as the A/A floor does. Assumes independent prompts. Cannot see: log-probabilities of tokens that were
not emitted, and faults that the reference shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import Check
from audit.checks.base.plans import at_least
from audit.evidence.anchor.reference_laws import other_request
from audit.evidence.coverage.examined import anchored_or_until_parted
from audit.evidence.coverage.groups import Group
from audit.evidence.logprob_changes import FLOOR_TIMES, OF_PROMPT, LogprobChanges, _of_prompt, changes
from audit.evidence.pairing import Divergence
from audit.evidence.precision import beyond_rounding
from audit.evidence.random_numbers import seed_of
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import MAX_FINDINGS, POOLED, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.clusters import ClusterInterval, mean_interval
from audit.stats.paired import sign_flip
from audit.stats.power import detectable_shift
from engine.backends.evidence import Part
from engine.core.types import Floats


@dataclass(frozen=True, slots=True)
class PlainDifferences:
    """[n] absolute differences of plain decoding: `floor` from itself, `noise` from the reference; empty if unknown.

    rounding: the noise is no more than that.
    """

    floor: Floats
    noise: Floats
    rounding: bool

    @property
    def usual(self) -> float:
        """The mean difference."""
        return max((float(part.mean()) for part in self._allowed if len(part)), default=0.0)

    @property
    def unusual(self) -> float:
        """A larger difference is a fault by itself."""
        return FLOOR_TIMES * max((float(part.max(initial=0.0)) for part in self._allowed), default=0.0)

    @property
    def _allowed(self) -> tuple[Floats, ...]:
        return (self.floor, self.noise) if self.rounding else (self.floor,)


@dataclass(frozen=True, slots=True)
class ReferenceCloseness:
    """Comparison with one reference. `upper` and `shift` are at 99 %, `low` and `bias` at the level of a fault."""

    changes: LogprobChanges
    mean: float
    upper: float
    low: float
    detectable: float
    bias: ClusterInterval
    shift: ClusterInterval
    bias_p: float
    allowed: float
    allowed_bias: float
    single: tuple[Finding, ...]
    beyond: tuple[Finding, ...]
    """Single differences beyond the measured noise."""


NOT_EQUAL = NoEvidence(
    "tokens equal the baseline's only at temperature 0 and under shared randomness, and there is no anchor arm"
)


def _applies(evidence: Evidence) -> str | None:
    if ArmKind.ANCHOR in evidence.companions or (evidence.baseline is not None and _equal_tokens(evidence)):
        return None
    if evidence.baseline is None:
        return NoEvidence("there is neither a baseline nor an anchor arm to compare with")
    return NOT_EQUAL


def _equal_tokens(evidence: Evidence) -> bool:
    return all(request.trace.header.repeats for request in evidence.candidate.requests)


def _prompt_changes(evidence: Evidence) -> list[LogprobChanges]:
    """Of prompts whose log-probabilities were requested; empty if none were."""
    if not any(request.trace.header.facts.get(OF_PROMPT) for request in evidence.candidate.requests):
        return []
    anchor = evidence.companions.get(ArmKind.ANCHOR)
    other, name = (anchor, "anchor") if anchor is not None else (evidence.baseline, "baseline")
    return [] if other is None else [changes(evidence.candidate, other, f"{name} over prompts", _of_prompt)]


def _run(evidence: Evidence, params: Params) -> CheckResult:
    result = []
    if evidence.baseline is not None and _equal_tokens(evidence):
        result.append(changes(evidence.candidate, evidence.baseline, "baseline"))
    other = other_request(evidence)
    if ArmKind.ANCHOR in evidence.companions and other is None:
        result.append(changes(evidence.candidate, evidence.companions[ArmKind.ANCHOR], "anchor"))
    result += _prompt_changes(evidence) if other is None else []
    if not result:
        return CheckResult(Verdict.INCONCLUSIVE, str(other))
    empty = next((item.reference for item in result if not len(item.value)), None)
    if empty is not None:
        return CheckResult(Verdict.INCONCLUSIVE, f"no log-probability is recorded at a prefix shared with the {empty}")
    floor, noise = _floor(evidence), _noise(evidence, params)
    rounding = beyond_rounding(noise, evidence.candidate.effective, params, "nats")
    plain, tests = PlainDifferences(floor, noise, not rounding), 2 * len(result)
    seed = seed_of(evidence.candidate.requests)
    judged = [_judge(item, plain, params, float(params["alpha"]) / tests, seed) for item in result]
    findings = [finding for item in judged for finding in _findings(item)]
    # what is beyond the fixed allowances is beyond the noise too, and larger
    findings = findings or [finding for item in judged for finding in item.beyond]
    worst = max(judged, key=lambda item: item.upper - item.allowed)
    finite = bool(np.isfinite(worst.upper))
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.INCONCLUSIVE if rounding else _verdict(judged, params),
        summary=_summary(judged, findings, floor) + (f"; {rounding}" if rounding and not findings else ""),
        n=sum(len(item.changes.value) for item in judged),
        statistic=worst.mean,
        p_value=min(item.bias_p for item in judged),
        effect=worst.mean,
        bound=worst.upper if finite else None,
        margin=worst.allowed,
        detectable=worst.detectable if finite else None,
        findings=tuple(findings[:MAX_FINDINGS]),
        details={item.changes.reference: _row(item) for item in judged}
        | {"floor": _floor_row(floor), "noise": _floor_row(noise)},
    )


def _floor(evidence: Evidence) -> Floats:
    """[n] absolute differences between the two plain runs; empty without a control."""
    if evidence.baseline is None or evidence.control is None:
        return np.empty(0)
    result = np.abs(changes(evidence.control, evidence.baseline, "baseline").value)
    return np.asarray(result[np.isfinite(result)])


def _noise(evidence: Evidence, params: Params) -> Floats:
    """[n] absolute differences of plain decoding from the reference; empty if too few were measured."""
    noise = evidence.companions.get(ArmKind.NOISE, evidence.companions.get(ArmKind.ANCHOR))
    if evidence.baseline is None or noise is None:
        return np.empty(0)
    result = np.abs(changes(evidence.baseline, noise, "anchor").value)
    return np.asarray(result[np.isfinite(result)] if len(result) >= int(params["min_noise"]) else np.empty(0))


def _beyond(value: Floats, most: float) -> NDArray[np.int64]:
    """The places of differences that are no number or larger than `most`."""
    finite = np.isfinite(value)
    return np.flatnonzero(~finite | (np.abs(np.where(finite, value, 0.0)) > most))


def _judge(
    result: LogprobChanges, plain: PlainDifferences, params: Params, alpha: float, seed: int
) -> ReferenceCloseness:
    finite = np.isfinite(result.value)
    value, prompt = result.value[finite], result.prompt[finite]
    most = max(float(params["max_single"]), plain.unusual)
    single = tuple(_single(result, int(i), most) for i in _beyond(result.value, most))
    measured = FLOOR_TIMES * float(plain.noise.max()) if len(plain.noise) else np.inf
    least = max(float(params["least_single"]), plain.unusual, measured)
    beyond = tuple(_single(result, int(i), least) for i in _beyond(result.value, least))
    if not len(value):
        nothing = ClusterInterval(0.0, -np.inf, np.inf, np.inf, 0, 0, np.nan)
        return ReferenceCloseness(result, 0.0, np.inf, -np.inf, np.inf, nothing, nothing, 1.0, 0.0, 0.0, single, beyond)
    size = mean_interval(np.abs(value), prompt, 0.98)
    strict = mean_interval(np.abs(value), prompt, 1.0 - 2.0 * alpha)
    return ReferenceCloseness(
        changes=result,
        mean=size.estimate,
        upper=size.high,
        low=strict.low,
        detectable=detectable_shift(alpha) * size.se,
        bias=mean_interval(value, prompt, 1.0 - alpha),
        shift=mean_interval(value, prompt, 0.98),
        bias_p=sign_flip(value, prompt, np.random.default_rng(seed)).p,
        allowed=max(float(params["margin"]), float(params["times_floor"]) * plain.usual),
        allowed_bias=max(float(params["bias_margin"]), plain.usual),
        single=single,
        beyond=beyond,
    )


def _single(result: LogprobChanges, i: int, most: float) -> Finding:
    pair, index = result.pairs[int(result.pair[i])], int(result.index[i])
    ours, theirs = float(result.ours[i]), float(result.theirs[i])
    # the first token of a prompt has no number, so that its second is the first of these
    place = index + 1 if result.part != "token" else index
    numbers = f"log-probability {ours:.6g}, the {result.reference} has {theirs:.6g}"
    message = f"{result.part} {place}: {numbers}; more than {most:.3g} apart"
    step = 0 if result.part != "token" else Divergence(pair, index, None, ended=False).step
    return Finding(pair.candidate.request_id, step, message)


def _findings(closeness: ReferenceCloseness) -> list[Finding]:
    name, result = closeness.changes.reference, list(closeness.single)
    if closeness.low > closeness.allowed:
        message = (
            f"against the {name}: mean absolute difference {closeness.mean:.4g}, at least {closeness.low:.4g} nats"
        )
        result.append(Finding(POOLED, 0, f"{message}, allowed {closeness.allowed:.4g}"))
    limit = closeness.allowed_bias
    if closeness.bias.low > limit or closeness.bias.high < -limit:
        ends = f"[{closeness.bias.low:.4g}, {closeness.bias.high:.4g}]"
        message = f"against the {name}: shifted by {closeness.bias.estimate:.4g} {ends} nats, allowed {limit:.4g}"
        result.append(Finding(POOLED, 0, message))
    return result


def _verdict(judged: Sequence[ReferenceCloseness], params: Params) -> Verdict:
    close = all(item.upper <= item.allowed for item in judged)
    level = all(max(-item.shift.low, item.shift.high) <= item.allowed_bias for item in judged)
    enough = all(len(item.changes.value) >= int(params["min_tokens"]) for item in judged)
    return Verdict.CERTIFIED if close and level and enough else Verdict.INCONCLUSIVE


def _summary(judged: Sequence[ReferenceCloseness], findings: Sequence[Finding], floor: Floats) -> str:
    usual = f"A/A floor {floor.mean():.3g}" if len(floor) else "no A/A floor"
    if findings:
        return f"{len(findings)} departures; {findings[0].message}; {usual}"
    sentences = [
        f"{len(item.changes.value)} tokens against the {item.changes.reference}: mean difference {item.mean:.3g}, "
        f"at most {item.upper:.3g} (99 %), allowed {item.allowed:.3g}, detectable {item.detectable:.3g} nats above it, "
        f"shift {item.shift.low:.3g} to {item.shift.high:.3g}"
        for item in judged
    ]
    return f"{'; '.join(sentences)}; {usual}"


def _row(closeness: ReferenceCloseness) -> dict[str, Any]:
    largest = np.abs(closeness.changes.value[np.isfinite(closeness.changes.value)]).max(initial=0.0)
    ends = {"low": closeness.shift.low, "high": closeness.shift.high}
    return {
        "tokens": len(closeness.changes.value),
        "prompts": closeness.bias.clusters,
        "mean": closeness.mean,
        "max": float(largest),
        "upper": closeness.upper if np.isfinite(closeness.upper) else None,
        "bias": closeness.bias.estimate,
        **{f"bias_{name}": end if np.isfinite(end) else None for name, end in ends.items()},
        "bias_p": closeness.bias_p,
        "allowed": closeness.allowed,
    }


def _floor_row(floor: Floats) -> dict[str, Any] | None:
    return {"tokens": len(floor), "mean": float(floor.mean()), "max": float(floor.max())} if len(floor) else None


CHECK = Check(
    name="logprob_closeness",
    claim="closeness",
    needs=Level.L1,
    defaults={
        "margin": 0.02,
        "times_floor": 2.0,
        "bias_margin": 0.01,
        "max_single": 1.0,
        "least_single": 0.01,
        "most_noise": 0.05,
        "half_noise": 0.2,
        "min_noise": 100,
        "alpha": 0.001,
        "min_tokens": 200,
    },
    run=_run,
    applies=_applies,
    foresee=lambda _params, design: None if design.repeats or design.shown.gives(Part.REFERENCE) else NOT_EQUAL,
    null="reported log-probabilities are the reference's at equal prefixes, up to the margin or the engine's own noise",
    effect="mean absolute difference in nats",
    plan=at_least("min_tokens", "compared tokens"),
    companions=(ArmKind.ANCHOR, ArmKind.NOISE),
    covers=frozenset({Group.DRAFTING}),
    examines=anchored_or_until_parted,
)
