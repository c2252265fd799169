"""The judgement on anchored rows, for the check of that name and for the transcript."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.evidence.anchor import rows
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.binomial import covered_quantile
from audit.stats.bounded_mean import betting_lower, betting_upper
from audit.stats.multiplicity import percent
from engine.core.errors import EngineError
from engine.core.types import Floats


@dataclass(frozen=True, slots=True)
class AnchorLimits:
    """Beyond `distance` (total variation) or `lead` (scores, greedy only) a single position is a fault.

    The limits come from `measured` positions of correct passes; 0 means fixed limits.
    """

    distance: float
    lead: float
    measured: int


@dataclass(frozen=True, slots=True)
class AnchorResult:
    """Complete result of the row comparison; check `transcript` uses it too."""

    requests: tuple[rows.ReferenceComparison, ...]
    units: Floats
    """[C] mean distance per prompt."""
    findings: tuple[Finding, ...]
    limits: AnchorLimits
    floor: rows.ReferenceNoise
    """Noise of the engine without speculation against itself."""
    reference: rows.ReferenceNoise
    """Noise of the engine without speculation against the reference."""

    @property
    def truncated(self) -> bool:
        """Distances are after all transforms."""
        return all(request.truncated for request in self.requests)

    @property
    def positions(self) -> int:
        """Number of compared positions."""
        return sum(len(request.law) for request in self.requests)

    @property
    def noise(self) -> Floats:
        """[n] distances of plain decoding from itself and from the reference."""
        return np.concatenate([self.floor.plain, self.reference.plain])

    @property
    def floor_mean(self) -> float | None:
        """Mean distance of the engine from itself; None if not measured."""
        return float(np.mean(self.floor.law)) if len(self.floor.law) else None


def anchored_rows(evidence: Evidence, params: Params) -> AnchorResult | str:
    """Compare the candidate with the anchor arm, which must exist; a text says why they cannot be compared."""
    anchor = evidence.companions[ArmKind.ANCHOR]
    reason = rows.unanchored(evidence.candidate, anchor)
    if reason is not None:
        return reason
    try:
        requests = rows.compare_arms(evidence.candidate, anchor)
        floor = rows.noise_between(evidence.control, evidence.baseline)
        # its passes over texts that the baseline may share: the candidate's and its own
        passes = (evidence.companions.get(kind) for kind in (ArmKind.ANCHOR, ArmKind.NOISE))
        reference = rows.joined(rows.noise_between(evidence.baseline, other) for other in passes if other is not None)
    except EngineError as error:
        return f"a row gives no distribution ({error}); see the replay check"
    limits = _limits(floor, reference, params)
    greedy = any(request.trace.header.sampling.greedy for request in evidence.candidate.requests)
    findings = tuple(finding for request in requests for finding in _positions(request, limits, greedy))
    return AnchorResult(requests, rows.by_case(requests), findings, limits, floor, reference)


def _limits(floor: rows.ReferenceNoise, reference: rows.ReferenceNoise, params: Params) -> AnchorLimits:
    plain, lead = (np.concatenate(parts) for parts in ((floor.plain, reference.plain), (floor.lead, reference.lead)))
    most, most_lead = float(params["position_margin"]), float(params["lead_margin"])
    if len(plain) < int(params["min_noise"]):
        return AnchorLimits(most, most_lead, 0)
    lead_noise = float(lead.max()) if len(lead) else 0.0
    # a baseline with the candidate's fault would allow anything
    return AnchorLimits(
        distance=min(most, max(float(params["least_distance"]), float(params["distance_factor"]) * float(plain.max()))),
        lead=min(most_lead, max(float(params["least_lead"]), float(params["lead_factor"]) * lead_noise)),
        measured=len(plain),
    )


def _positions(comparison: rows.ReferenceComparison, limits: AnchorLimits, greedy: bool) -> Iterator[Finding]:
    """A finding for each position beyond the noise limits."""
    for i in range(len(comparison.law)):
        step, where = int(comparison.step[i]), f"token {i + 1}"
        if comparison.plain[i] > limits.distance:
            message = f"the row of {where} is {comparison.plain[i]:.3g} in total variation from the reference's"
            yield Finding(comparison.request, step, f"{message}, noise allows {limits.distance:.3g}")
        elif greedy and comparison.lead[i] < -limits.lead:
            message = f"{where} is behind the reference's best one by {-comparison.lead[i]:.3g}"
            yield Finding(comparison.request, step, f"{message}, noise allows {limits.lead:.3g}")


def judge_rows(result: AnchorResult | str, params: Params) -> CheckResult:
    """The check's result from compared rows."""
    if isinstance(result, str):
        return CheckResult(Verdict.INCONCLUSIVE, result)
    margin, confidence = float(params["margin"]), float(params["confidence"])
    low = betting_lower(result.units, 1.0 - float(params["alpha"]))
    high, best = betting_upper(result.units, confidence), betting_upper(np.zeros(len(result.units)), confidence)
    verdict = _verdict(result, low, high, margin)
    return CheckResult(
        verdict=verdict,
        summary=_summary(result, low, high, params),
        n=len(result.units),
        statistic=float(max(np.max(request.law) for request in result.requests)),
        effect=float(np.mean(result.units)),
        bound=high,
        margin=margin,
        detectable=best,
        findings=result.findings[: int(params["max_findings"])],
        details={"lower_bound": low, "positions": result.positions, **numbers(result)},
    )


def numbers(result: AnchorResult) -> dict[str, Any]:
    """JSON-able: the noise and the limits for a single position."""
    return {
        "requests": len(result.requests),
        "prompts": len(result.units),
        "positions_beyond_noise": len(result.findings),
        "after_truncation": result.truncated,
        "position_limit": result.limits.distance,
        "lead_limit": result.limits.lead,
        "noise_positions": result.limits.measured,
        "noise_quantile": covered_quantile(result.limits.measured),
        "floor": result.floor_mean,
        "baseline_from_reference": float(np.mean(result.reference.law)) if len(result.reference.law) else None,
    }


def _verdict(result: AnchorResult, low: float, high: float, margin: float) -> Verdict:
    if result.findings or low > margin:
        return Verdict.FAULT
    return Verdict.CERTIFIED if result.truncated and high <= margin else Verdict.INCONCLUSIVE


def _summary(result: AnchorResult, low: float, high: float, params: Params) -> str:
    margin, units = float(params["margin"]), len(result.units)
    mean = float(np.mean(result.units))
    if result.findings:
        first = result.findings[0]
        share = f"{len(result.findings)} of {result.positions} positions are further from the reference than noise"
        return f"{share}; first in {first.request}, step {first.step}: {first.message}"
    bound = f"mean total variation {mean:.3g} per token over {units} prompts"
    if low > margin:
        return f"{bound}, at least {low:.3g}: above {margin:g}"
    bound = f"{bound}, at most {high:.3g} ({percent(float(params['confidence']))})"
    if not result.truncated:
        return f"{bound}, before top-k, top-p and min-p: these need whole rows (record: full)"
    if high > margin:
        least = betting_upper(np.zeros(units), float(params["confidence"]))
        return f"{bound}, above {margin:g}; this many prompts can show {least:.3g} at best"
    return bound


DEFAULTS: dict[str, Any] = {
    "margin": 0.05,
    "confidence": 0.995,
    "alpha": 0.001,
    "distance_factor": 10.0,
    "lead_factor": 2.0,
    "least_distance": 1e-3,
    "least_lead": 1e-3,
    "min_noise": 100,
    "position_margin": 0.5,
    "lead_margin": 2.0,
    "max_findings": 20,
}
