"""The verdict on token-by-token equality, shared by the two equality checks.

A divergence is numerical if the baseline's own lead there is within the noise between two runs of the baseline, real if
it is larger or if the texts end differently, and untriaged if the noise or the lead is unknown. With a lead below minus
the noise the baseline's own row prefers the candidate's token: kind `baseline`. Any baseline token that is not the best
of its own processed row, divergence or not, is a fault of the baseline, because an arm cannot be certified by a
comparison with a decoder that does not decode its own rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

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
from audit.evidence.records import Evidence, RequestRecord, names_its_ends
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.record.trace import steps_of

MIN_NOISE_POSITIONS = 300
"""With fewer positions the maximum covers less than the 98.5 % quantile at 99 % confidence."""
KINDS = ("numerical", "real", "untriaged", "baseline")
ORDER = ("baseline", "real", "untriaged", "numerical")
"""Order in which findings are listed."""

LeadOver = Callable[[Divergence], float | None]
"""Lead of the baseline's choice over the candidate's token; None if not recorded."""
BEFORE: Final = 24
AFTER: Final = 16


def parting(ours: str, theirs: str, our_name: str = "it", their_name: str = "the baseline") -> str:
    """The end of what both wrote, and how each went on; empty for equal texts. Unprintable characters are escaped.

    Texts part at or before the first differing token: different tokens can begin with the same characters.
    """
    if ours == theirs:
        return ""
    shorter = min(len(ours), len(theirs))
    at = next((index for index in range(shorter) if ours[index] != theirs[index]), shorter)
    before = ours[max(0, at - BEFORE) : at]
    return f"after {before!r} {our_name} wrote {_next(ours, at)}, {their_name} {_next(theirs, at)}"


def _next(text: str, at: int) -> str:
    return repr(text[at : at + AFTER]) if at < len(text) else "nothing"


@dataclass(frozen=True, slots=True)
class Instrument:
    """A check's measurement of leads: `margins` for the noise, `lead_over` for the triage.

    `behind` gives by how much each token of a request is behind the best of its own processed row, 0 for rounding.
    """

    margins: Margins
    lead_over: LeadOver
    behind: Margins
    unit: str


@dataclass(frozen=True, slots=True)
class TriagedDivergence:
    """A divergence with its kind, one of `KINDS`."""

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
            whose = "; the baseline's own row prefers the candidate's token" if self.kind == "baseline" else ""
            message = (
                f"{self.kind}: token {at} is {self.divergence.token}, the baseline has {pair.baseline.tokens[at]}; "
                f"its lead there: {lead}, noise bound {noise.words}{whose}{_texts(pair)}"
            )
        return Finding(pair.candidate.request_id, self.divergence.step, message)


@dataclass(frozen=True, slots=True)
class BaselineFault:
    """A baseline request with tokens that are not the best of their own rows: their places, and the worst of them."""

    request: RequestRecord
    places: frozenset[int]
    index: int
    behind: float

    def finding(self, unit: str) -> Finding:
        """The finding: the worst token, and by how much its own row prefers another."""
        trace = self.request.trace
        step = next(view.index for view in steps_of(trace) if view.emitted.start <= self.index < view.emitted.stop)
        message = (
            f"fault of the baseline: token {self.index} is {self.request.tokens[self.index]}, {self.behind:.4g} {unit} "
            f"behind the best of its own row ({len(self.places)} such tokens in this request)"
        )
        return Finding(self.request.request_id, step, message)


def _texts(pair: Pair) -> str:
    words = parting(pair.candidate.text, pair.baseline.text)
    return words and f"; {words}"


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
    pairs = [other for other in map(divergence, pairing.pairs) if other is not None]
    noise = _noise(evidence, params, instrument)
    wrong = [fault for pair in pairing.pairs if (fault := baseline_fault(pair.baseline, instrument)) is not None]
    places = {item.request.request_id: item.places for item in wrong}
    triaged = [triage(item, noise, instrument, places) for item in pairs]
    tokens = sum(compared(pair) for pair in pairing.pairs)
    counts = {kind: sum(item.kind == kind for item in triaged) for kind in KINDS}
    real, confidence = counts["real"], float(params["confidence"])
    verdict, reason = _decide(counts, sum(len(item.places) for item in wrong), tokens, pairing, params)
    triaged.sort(key=lambda item: ORDER.index(item.kind))
    findings = [*(item.finding(instrument.unit) for item in wrong)]
    findings += [item.finding(noise, instrument.unit) for item in triaged]
    return CheckResult(
        verdict=verdict,
        summary=_summary(counts, tokens, len(pairing.pairs), noise, reason),
        n=tokens,
        statistic=float(real),
        effect=_per_1000(real, tokens),
        bound=1000.0 * upper_bound(min(real, tokens), tokens, confidence) if tokens else None,
        findings=tuple(findings[:MAX_FINDINGS]),
        details={
            **_details(counts, tokens, pairing, noise, triaged, confidence),
            "baseline_tokens_behind": sum(len(item.places) for item in wrong),
        },
    )


def baseline_fault(request: RequestRecord, instrument: Instrument) -> BaselineFault | None:
    """The tokens of a baseline's request that are not the best of their own rows; None if there are none."""
    behind = np.nan_to_num(instrument.behind(request), nan=0.0, posinf=math.inf)
    places = frozenset(np.flatnonzero(behind > 0.0).tolist())
    if not places:
        return None
    index = int(behind.argmax())
    return BaselineFault(request, places, index, float(behind[index]))


def _noise(evidence: Evidence, params: Params, instrument: Instrument) -> MarginNoise:
    """The measured noise, or the bound that the suite states."""
    assert evidence.baseline is not None
    measured = measure_noise(evidence.baseline, evidence.controls, instrument.margins)
    bound = float(params["noise_bound"])
    return measured if bound < 0.0 else replace(measured, bound=bound, given=True)


def triage(
    result: Divergence, noise: MarginNoise, instrument: Instrument, wrong: Mapping[str, frozenset[int]]
) -> TriagedDivergence:
    """The kind of a divergence; `wrong` holds the baseline's tokens that are behind their own rows, by request."""
    if result.ended:
        # with tokens derived from text an end has no token, and so no lead that shows how close it was
        known = all(names_its_ends(item) for item in (result.pair.candidate, result.pair.baseline))
        return TriagedDivergence(result, "real" if known else "untriaged", None)
    lead = instrument.lead_over(result)
    # a wrong token of the baseline is a flip against the control too, which widens the measured noise
    if lead is not None and lead < 0.0 and result.index in wrong.get(result.pair.baseline.request_id, ()):
        return TriagedDivergence(result, "baseline", lead)
    if lead is None or not (noise.given or noise.positions >= MIN_NOISE_POSITIONS):
        return TriagedDivergence(result, "untriaged", lead)
    if lead < -noise.bound:
        return TriagedDivergence(result, "baseline", lead)
    return TriagedDivergence(result, "numerical" if lead <= noise.bound else "real", lead)


def _decide(counts: dict[str, int], behind: int, tokens: int, pairing: Pairing, params: Params) -> tuple[Verdict, str]:
    limit = float(params["max_numerical_per_1000"])
    rate = _per_1000(counts["numerical"], tokens) or 0.0
    if behind or counts["baseline"]:
        return Verdict.FAULT, _blame(behind, counts)
    if counts["real"]:
        return Verdict.FAULT, f"{counts['real']} differ by more than noise"
    if pairing.unpaired:
        return Verdict.INCONCLUSIVE, f"{len(pairing.unpaired)} cases are in one arm only, first {pairing.unpaired[0]}"
    if counts["untriaged"]:
        return Verdict.INCONCLUSIVE, "divergences cannot be triaged without a control arm of 300 positions and leads"
    if tokens < int(params["min_tokens"]):
        return Verdict.INCONCLUSIVE, f"fewer than {params['min_tokens']} tokens"
    if rate > limit:
        return Verdict.INCONCLUSIVE, f"{rate:.3g} numerical divergences per 1000 tokens, more than {limit:g}"
    return Verdict.CERTIFIED, "no real divergence"


def _blame(behind: int, counts: dict[str, int]) -> str:
    places = f"{behind} of its tokens are not the best of their own rows" if behind else ""
    preferred = f"its own row prefers the candidate's token at {counts['baseline']} divergences"
    also = f"; {counts['real']} differ by more than noise" if counts["real"] else ""
    return f"fault of the baseline: {places or preferred}{also}"


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
    leads = [item.lead for item in triaged if item.lead is not None and math.isfinite(item.lead)]
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
