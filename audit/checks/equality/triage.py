"""The verdict on token-by-token equality, shared by the two equality checks.

A divergence is numerical if the baseline's own lead there is within the noise
between two runs of the baseline, real if it is not or if the texts end
differently, and untriaged if the noise or the lead is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from audit.checks.interface import Params
from audit.evidence.origin import names_its_ends
from audit.evidence.pairing import (
    Divergence,
    MarginNoise,
    Margins,
    Pair,
    Pairing,
    compared,
    divergence,
    measure_noise,
    pair_arms,
)
from audit.evidence.records import Evidence
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound

MIN_NOISE_POSITIONS = 300
"""With fewer positions the maximum covers less than the 98.5 % quantile at 99 % confidence."""
MAX_FINDINGS = 20

LeadOver = Callable[[Divergence], float | None]
"""Lead of the baseline's choice over the candidate's token; None if not recorded."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """A check's measurement of leads: `margins` for the noise, `lead_over` for the triage."""

    margins: Margins
    lead_over: LeadOver
    unit: str


@dataclass(frozen=True, slots=True)
class TriagedDivergence:
    """A divergence with its kind: `numerical`, `real` or `untriaged`."""

    divergence: Divergence
    kind: str
    lead: float | None

    def finding(self, noise: MarginNoise, unit: str) -> Finding:
        """The finding: place and reason."""
        at, pair = self.divergence.index, self.divergence.pair
        if self.divergence.ended and _ended_alike(pair):
            message = f"{self.kind}: the same tokens give another text, {pair.candidate.text[:60]!r}"
        elif self.divergence.ended:
            ours = f"{len(pair.candidate.tokens)} tokens ({pair.candidate.finish_reason})"
            theirs = f"{len(pair.baseline.tokens)} tokens ({pair.baseline.finish_reason})"
            message = f"{self.kind}: ends after {ours}, the baseline after {theirs}"
        else:
            lead = "not recorded" if self.lead is None else f"{self.lead:.4g} {unit}"
            message = (
                f"{self.kind}: token {at} is {self.divergence.token}, the baseline has {pair.baseline.tokens[at]}; "
                f"its lead there: {lead}, noise bound {noise.words}"
            )
        return Finding(pair.candidate.request_id, self.divergence.step, message)


def _ended_alike(pair: Pair) -> bool:
    ours, theirs = pair.candidate, pair.baseline
    return len(ours.tokens) == len(theirs.tokens) and ours.finish_reason == theirs.finish_reason


def judge_equality(evidence: Evidence, params: Params, instrument: Instrument) -> CheckResult:
    """Compare candidate and baseline; the evidence must have a baseline."""
    assert evidence.baseline is not None
    pairing = pair_arms(evidence.candidate, evidence.baseline)
    for pair in pairing.pairs:
        if pair.candidate.trace.header.prompt != pair.baseline.trace.header.prompt:
            reason = f"request {pair.candidate.request_id} and its baseline have different prompts"
            return CheckResult(Verdict.INCONCLUSIVE, reason)
    found = [each for each in map(divergence, pairing.pairs) if each is not None]
    noise = _noise(evidence, params, instrument)
    triaged = [_triage(each, noise, instrument) for each in found]
    tokens = sum(compared(pair) for pair in pairing.pairs)
    counts = {kind: sum(each.kind == kind for each in triaged) for kind in ("numerical", "real", "untriaged")}
    real, confidence = counts["real"], float(params["confidence"])
    decision = _decide(counts, tokens, pairing, params)
    order = {"real": 0, "untriaged": 1, "numerical": 2}
    triaged.sort(key=lambda each: order[each.kind])
    return CheckResult(
        verdict=decision.verdict,
        summary=_summary(counts, tokens, len(pairing.pairs), noise, decision.reason),
        n=tokens,
        statistic=float(real),
        effect=_per_1000(real, tokens),
        bound=1000.0 * upper_bound(min(real, tokens), tokens, confidence) if tokens else None,
        findings=tuple(each.finding(noise, instrument.unit) for each in triaged[:MAX_FINDINGS]),
        details=_details(counts, tokens, pairing, noise, triaged, confidence),
    )


def _noise(evidence: Evidence, params: Params, instrument: Instrument) -> MarginNoise:
    """The measured noise, or the bound that the suite states."""
    assert evidence.baseline is not None
    measured = measure_noise(evidence.baseline, evidence.controls, instrument.margins)
    bound = float(params["noise_bound"])
    return measured if bound < 0.0 else replace(measured, bound=bound, given=True)


def _triage(found: Divergence, noise: MarginNoise, instrument: Instrument) -> TriagedDivergence:
    if found.ended:
        # with tokens derived from text an end has no token, and so no lead that shows how close it was
        known = all(names_its_ends(each) for each in (found.pair.candidate, found.pair.baseline))
        return TriagedDivergence(found, "real" if known else "untriaged", None)
    lead = instrument.lead_over(found)
    if lead is None or not (noise.given or noise.positions >= MIN_NOISE_POSITIONS):
        return TriagedDivergence(found, "untriaged", lead)
    return TriagedDivergence(found, "numerical" if lead <= noise.bound else "real", lead)


@dataclass(frozen=True, slots=True)
class _TriageDecision:
    verdict: Verdict
    reason: str


def _decide(counts: dict[str, int], tokens: int, pairing: Pairing, params: Params) -> _TriageDecision:
    limit = float(params["max_numerical_per_1000"])
    rate = _per_1000(counts["numerical"], tokens) or 0.0
    if counts["real"]:
        return _TriageDecision(Verdict.FAULT, f"{counts['real']} differ by more than noise")
    if pairing.unpaired:
        return _TriageDecision(
            Verdict.INCONCLUSIVE, f"{len(pairing.unpaired)} cases are in one arm only, first {pairing.unpaired[0]}"
        )
    if counts["untriaged"]:
        return _TriageDecision(
            Verdict.INCONCLUSIVE, "divergences cannot be triaged without a control arm of 300 positions and leads"
        )
    if tokens < int(params["min_tokens"]):
        return _TriageDecision(Verdict.INCONCLUSIVE, f"fewer than {params['min_tokens']} tokens")
    if rate > limit:
        return _TriageDecision(
            Verdict.INCONCLUSIVE, f"{rate:.3g} numerical divergences per 1000 tokens, more than {limit:g}"
        )
    return _TriageDecision(Verdict.CERTIFIED, "no real divergence")


def _per_1000(count: int, tokens: int) -> float | None:
    return 1000.0 * count / tokens if tokens else None


def _summary(counts: dict[str, int], tokens: int, pairs: int, noise: MarginNoise, reason: str) -> str:
    split = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    divergences = f"{sum(counts.values())} divergences ({split})" if split else "no divergence"
    bound = f"; noise bound {noise.words}" if noise.given or noise.positions else "; no control"
    return f"{reason}: {tokens} tokens of {pairs} pairs compared, {divergences}{bound}"


def _details(
    counts: dict[str, int],
    tokens: int,
    pairing: Pairing,
    noise: MarginNoise,
    triaged: Sequence[TriagedDivergence],
    confidence: float,
) -> dict[str, Any]:
    leads = [each.lead for each in triaged if each.lead is not None and math.isfinite(each.lead)]
    numerical = counts["numerical"]
    return {
        "tokens_compared": tokens,
        "pairs": len(pairing.pairs),
        "unpaired": list(pairing.unpaired),
        "divergences": counts,
        "leads": leads,
        "numerical_per_1000": _per_1000(numerical, tokens),
        "numerical_per_1000_bound": 1000.0 * upper_bound(numerical, tokens, confidence) if tokens else None,
        "noise_bound": noise.bound,
        "noise_given": noise.given,
        "noise_positions": noise.positions,
        "noise_quantile": noise.quantile,
        "control_flips": noise.flips,
    }
