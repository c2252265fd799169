"""Same seed: under the baseline's seeds another engine's sampled tokens are those that it gives without speculation.

Claim: equality. Null: an engine that samples and matches emits plain decoding's tokens under the same seed, up to its
own noise. Statistic: divergences per compared token, beside those of the baseline's repetitions (controls: again, in
another order, one request at a time) under the same seeds; one-sided exact test of two rates. Effect and bound:
divergences per 1000 compared tokens and the 99 % Clopper-Pearson upper bound. No lead is known where another engine
draws its numbers, so near-ties are not told apart one by one: their rate is. Assumes controls that meet near-ties as
often as the candidate. Cannot see: whether the numbers are random at all, a law that both arms get wrong, and anything
after a pair's first difference.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from audit.checks.base.interface import Check, Design
from audit.checks.base.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.divergence.triage import parting
from audit.evidence.pairing import Divergence, Pairing, compared, divergence, pair_arms
from audit.evidence.records import Evidence
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.laws import binomial_sf
from engine.core.types import Protocol
from engine.record.effective import LoopOwner

GREEDY: Final = "at temperature 0 no seed matters; see greedy_equality"
OTHER_RULE: Final = (
    "the arm promises no shared random numbers: its verifier is not gumbel; see token_law and two_sample"
)
KEYED: Final = "the project's own loop drew the numbers, whose noise is known; see coupled_equality"
MOST_NOISE: Final = 0.05
"""With more divergences per token between two plain runs the engine does not keep its seeds."""


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """Two arms under the same seeds: the first divergences, and the tokens compared up to them."""

    divergences: tuple[Divergence, ...]
    tokens: int
    unpaired: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Divergences per compared token; 0 without any."""
        return len(self.divergences) / self.tokens if self.tokens else 0.0


def _applies(evidence: Evidence) -> str | None:
    if evidence.candidate.ours:
        return KEYED
    headers = [request.trace.header for request in evidence.candidate.requests]
    if not all(header.protocol is Protocol.GUMBEL for header in headers):
        return OTHER_RULE
    if any(header.sampling.greedy for header in headers):
        return GREEDY
    return None if evidence.baseline is not None else NoEvidence("there is no baseline arm to compare with")


def _foresee(_params: Params, design: Design) -> str | None:
    if design.shown.decoder is LoopOwner.OWN:
        return KEYED
    if design.shown.protocol is not Protocol.GUMBEL:
        return OTHER_RULE
    return GREEDY if design.greedy else None


def _compared(pairing: Pairing) -> SeedComparison:
    pairs = tuple(one for one in map(divergence, pairing.pairs) if one is not None)
    return SeedComparison(pairs, sum(map(compared, pairing.pairs)), pairing.unpaired)


def _pooled(comparisons: Iterable[SeedComparison]) -> SeedComparison:
    every = tuple(comparisons)
    return SeedComparison(
        tuple(result for one in every for result in one.divergences), sum(one.tokens for one in every)
    )


def higher_rate(ours: SeedComparison, noise: SeedComparison) -> float:
    """One-sided p that the candidate diverges no more often per token than repetitions of the baseline."""
    total = len(ours.divergences) + len(noise.divergences)
    share = ours.tokens / (ours.tokens + noise.tokens)
    return float(binomial_sf(len(ours.divergences) - 1, total, share))


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    pairing = pair_arms(evidence.candidate, evidence.baseline)
    for pair in pairing.pairs:
        ours, theirs = pair.candidate.trace.header, pair.baseline.trace.header
        if (ours.stream, ours.sampling, ours.prompt) != (theirs.stream, theirs.sampling, theirs.prompt):
            reason = (
                f"request {pair.candidate.request_id} and its baseline differ in prompt, seed or sampling parameters"
            )
            return CheckResult(Verdict.INCONCLUSIVE, reason)
    comparison = _compared(pairing)
    noise = _pooled(_compared(pair_arms(control, evidence.baseline)) for control in evidence.controls)
    p = higher_rate(comparison, noise) if noise.tokens and comparison.divergences else 1.0
    confidence = float(params["confidence"])
    bound = upper_bound(len(comparison.divergences), comparison.tokens, confidence) if comparison.tokens else 1.0
    verdict, reason = _decide(comparison, noise, p, 1000.0 * bound, params)
    return CheckResult(
        verdict=verdict,
        summary=_summary(reason, comparison, noise, len(pairing.pairs)),
        n=comparison.tokens,
        statistic=float(len(comparison.divergences)),
        p_value=p,
        effect=1000.0 * comparison.rate,
        bound=1000.0 * bound,
        margin=float(params["max_numerical_per_1000"]),
        findings=tuple(map(_finding, comparison.divergences[:MAX_FINDINGS])),
        details=_details(comparison, noise, len(pairing.pairs)),
    )


def _decide(
    comparison: SeedComparison, noise: SeedComparison, p: float, bound: float, params: Params
) -> tuple[Verdict, str]:
    if noise.tokens and noise.rate > MOST_NOISE:
        rate = f"{1000.0 * noise.rate:.3g} divergences per 1000 tokens"
        return Verdict.INCONCLUSIVE, f"the baseline does not repeat itself under its seeds ({rate})"
    if p < float(params["alpha"]):
        return Verdict.FAULT, f"more divergences than the baseline's repetitions have (p {p:.2g})"
    if comparison.unpaired:
        only = f"{len(comparison.unpaired)} cases are in one arm only, first {comparison.unpaired[0]}"
        return Verdict.INCONCLUSIVE, only
    if comparison.divergences and not noise.tokens:
        return Verdict.INCONCLUSIVE, "divergences cannot be judged without a repetition of the baseline"
    if comparison.tokens < int(params["min_tokens"]):
        return Verdict.INCONCLUSIVE, f"fewer than {params['min_tokens']} tokens"
    if bound > float(params["max_numerical_per_1000"]):
        limit = float(params["max_numerical_per_1000"])
        return Verdict.INCONCLUSIVE, f"up to {bound:.3g} divergences per 1000 tokens, more than {limit:g}"
    return Verdict.CERTIFIED, "the baseline's tokens under its seeds"


def _finding(result: Divergence) -> Finding:
    ours, theirs, at = result.pair.candidate, result.pair.baseline, result.index
    if result.ended:
        numbers = f"{len(ours.tokens)} tokens ({ours.finish_reason}), the baseline {len(theirs.tokens)}"
        return Finding(ours.request_id, result.step, f"ends after {numbers} ({theirs.finish_reason})")
    words = parting(ours.text, theirs.text)
    message = f"token {at} is {result.token}, under the same seed the baseline has {theirs.tokens[at]}"
    return Finding(ours.request_id, result.step, f"{message}{f'; {words}' if words else ''}")


def _summary(reason: str, comparison: SeedComparison, noise: SeedComparison, pairs: int) -> str:
    own = f"{len(comparison.divergences)} divergences in {comparison.tokens} tokens of {pairs} pairs"
    repeated = f"repetitions of the baseline: {len(noise.divergences)} in {noise.tokens}"
    return f"{reason}: {own}; {repeated if noise.tokens else 'no repetition of the baseline'}"


def _details(comparison: SeedComparison, noise: SeedComparison, pairs: int) -> dict[str, Any]:
    return {
        "pairs": pairs,
        "unpaired": list(comparison.unpaired),
        "divergences": len(comparison.divergences),
        "noise_divergences": len(noise.divergences),
        "noise_tokens": noise.tokens,
        "noise_per_1000": 1000.0 * noise.rate if noise.tokens else None,
    }


CHECK = Check(
    name="same_seed",
    claim="equality",
    defaults={"alpha": 0.001, "confidence": 0.99, "max_numerical_per_1000": 5.0, "min_tokens": 1000},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="under the baseline's seed every token is the baseline's, up to the engine's own noise",
    effect="divergences per 1000 tokens",
    plan=at_least("min_tokens", "compared tokens"),
    covers=EVERY_GROUP,
    examines=until_parted,
)
