"""Transcript: the whole chain from random numbers and the target's rows to tokens, in one statement.

Claim: transcript. Null: the tokens under speculation follow the reference's law. Combines other checks: every decision
and every draft replayed, random numbers audited, records free of contradictions, kept drafts independent of their own
probability, and rows against the reference's (anchor). A fault in any part is a fault here. Effect and bound:
eps_replay + eps_numeric, total variation per token with 99 % confidence (`audit.stats.certificate`), from one position
per prompt for the mismatches and the mean distance per prompt for the rows. Assumes A1 to A4 of the certificate. Cannot
see: a forged record, prompts and builds outside the workload. Without random numbers or without an anchor the check
makes only a weaker statement and certifies nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from audit.checks import load
from audit.checks.base.interface import NO_ANCHOR, Check, Design, evaluate, foresees_key, needs_key
from audit.checks.transcript import statement as statement
from audit.evidence.anchor.judgement import DEFAULTS, AnchorResult, anchored_rows, judge_rows, numbers
from audit.evidence.coverage.examined import anchored
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import decisions, unreadable
from audit.evidence.law.table import tabulate
from audit.evidence.random_numbers import seed_of
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.anytime.scores import LOG_FLOOR
from audit.stats.binomial import upper_bound
from audit.stats.certificate import REPLAY_SHARE, Certificate, Observation, PredictableScore, certify, observe
from audit.stats.distance import Binned, WitnessEstimate, binned, witness
from audit.stats.power import bound_need
from audit.stats.sample_size import SampleSize
from engine.core.sequences import grouped

TESTED = ("q_contract", "rng_streams", "prefix_measurable")
"""Parts with statistical tests; they and the anchor share the error probability."""
EVERY = 2**31
WITNESS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TranscriptParts:
    """Results of the parts by name, and the row comparison or the reason for its absence."""

    results: Mapping[str, CheckResult]
    rows: AnchorResult | str

    @property
    def faults(self) -> tuple[Finding, ...]:
        """All findings of faulty parts, prefixed by the part's name; the first finding of each part comes first."""
        listed = [
            (place, Finding(result.request, result.step, f"{name}: {result.message}"))
            for name, item in self.results.items()
            if item.verdict is Verdict.FAULT
            for place, result in enumerate(item.findings or (Finding(POOLED, 0, item.summary),))
        ]
        return tuple(finding for _, finding in sorted(listed, key=lambda item: item[0]))

    @property
    def missing(self) -> tuple[str, ...]:
        """Evidence that a certificate lacks."""
        replayed, drafted, streams = (self.results[name] for name in ("replay", "q_contract", "rng_streams"))
        lacking = [f"anchor: {self.rows}"] if isinstance(self.rows, str) else []
        if not isinstance(self.rows, str) and not self.rows.truncated:
            lacking.append("anchor: truncated laws need whole rows (record: full)")
        if replayed.verdict is not Verdict.CERTIFIED:
            lacking.append(f"replay: {replayed.summary}")
        if drafted.details.get("without_number") or _silent(drafted):
            lacking.append(f"q_contract: {drafted.summary}")
        if streams.details.get("missing") or _silent(streams):
            lacking.append(f"rng_streams: {streams.summary}")
        return tuple(lacking)


def _silent(result: CheckResult) -> bool:
    """True if the part applies but could not run."""
    return result.verdict is Verdict.INCONCLUSIVE and not result.details


def parts_of(evidence: Evidence, params: Params) -> TranscriptParts:
    """Run the parts that apply."""
    share = float(params["alpha"]) / (len(TESTED) + 1)
    overrides = {"max_findings": EVERY}
    # only the combined bound decides here: each part's own margin matters only to that check
    results = {name: evaluate(load(name), evidence, overrides) for name in ("replay", "accounting")}
    results |= {name: evaluate(load(name), evidence, overrides | {"alpha": share}) for name in TESTED}
    rows: AnchorResult | str = NO_ANCHOR
    if ArmKind.ANCHOR in evidence.companions:
        own = {**DEFAULTS, **overrides, "alpha": share, "margin": params["margin"]}
        rows = anchored_rows(evidence, own)
        results["anchor"] = judge_rows(rows, own)
    return TranscriptParts(results, rows)


@dataclass(frozen=True, slots=True)
class AuditedPositions:
    """One position per prompt: number of positions, and number that did not replay."""

    positions: int
    violations: int


def audited_positions(arm: ArmRecord, parts: TranscriptParts) -> AuditedPositions:
    """Draw one request per prompt and one position per request; the evidence seeds the draw."""
    generator = np.random.default_rng(seed_of(arm.requests))
    wrong = {
        (finding.request, finding.step) for name in ("replay", "q_contract") for finding in parts.results[name].findings
    }
    prompts = grouped((request.case_id, request) for request in arm.requests)
    drawn = [requests[int(generator.integers(len(requests)))] for requests in prompts.values()]
    steps = [(item.request_id, _step_of(item, generator.random())) for item in drawn if item.tokens]
    return AuditedPositions(len(steps), sum(step in wrong for step in steps))


def _step_of(request: RequestRecord, share: float) -> int:
    """The step that emitted the token at the given fraction of the response."""
    ends = np.cumsum(request.trace.n_emitted)
    return int(np.searchsorted(ends, int(share * len(request.tokens)), side="right"))


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    if not any(request.tokens for request in arm.requests):
        return CheckResult(Verdict.INCONCLUSIVE, "the arm has no requests with tokens")
    if arm.level < Level.L4:
        return _observed(evidence, params)
    parts = parts_of(evidence, params)
    audited = audited_positions(arm, parts)
    certificate = _certificate(audited, parts, float(params["confidence"]))
    faults, missing, margin = parts.faults, parts.missing, float(params["margin"])
    within = not missing and certificate is not None and certificate.eps <= margin
    verdict = Verdict.FAULT if faults else Verdict.CERTIFIED if within else Verdict.INCONCLUSIVE
    return CheckResult(
        verdict=verdict,
        summary=_summary(arm, certificate, audited, parts, params),
        n=audited.positions,
        statistic=float(len(faults)),
        effect=None if certificate is None else audited.violations / audited.positions + certificate.anchored_mean,
        bound=None if certificate is None else certificate.eps,
        margin=margin,
        detectable=certify(0, audited.positions, np.zeros(audited.positions), float(params["confidence"])).eps,
        findings=faults[: int(params["max_findings"])],
        details={
            "parts": {name: item.verdict.value for name, item in parts.results.items()},
            "missing": list(missing),
            "certificate": None
            if certificate is None
            else statement.certificate_numbers(certificate, statement.longest(arm)),
            "rows": None if isinstance(parts.rows, str) else numbers(parts.rows),
            **_small_print(arm),
        },
    )


def _certificate(audited: AuditedPositions, parts: TranscriptParts, confidence: float) -> Certificate | None:
    if isinstance(parts.rows, str):
        return None
    rows = parts.rows
    return certify(audited.violations, audited.positions, rows.units, confidence, floor=rows.floor_mean)


def _small_print(arm: ArmRecord) -> dict[str, Any]:
    return {
        "workload": statement.workload(arm),
        "build": statement.build(arm),
        "assumptions": list(statement.ASSUMPTIONS),
        "not_claimed": list(statement.NOT_CLAIMED),
    }


def _summary(
    arm: ArmRecord, certificate: Certificate | None, audited: AuditedPositions, parts: TranscriptParts, params: Params
) -> str:
    faults, missing = parts.faults, parts.missing
    if faults:
        first = faults[0]
        return f"{len(faults)} faults; first in {first.request}, step {first.step}: {first.message}"
    confidence, margin = float(params["confidence"]), float(params["margin"])
    if certificate is None:
        eps = upper_bound(audited.violations, audited.positions, 1.0 - (1.0 - confidence) * REPLAY_SHARE)
        sentence = statement.replay_sentence(eps, audited.positions, 1.0 - (1.0 - confidence) * REPLAY_SHARE, arm)
    else:
        sentence = statement.certificate_sentence(certificate, arm)
    if missing:
        return f"{sentence}; missing: {'; '.join(missing)}"
    if certificate is not None and certificate.eps > margin:
        return f"{sentence}; above the margin {margin:g}: more prompts are needed"
    return sentence


def _observed(evidence: Evidence, params: Params) -> CheckResult:
    """Result for evidence without random numbers: contradictions and lower bounds."""
    arm = evidence.candidate
    plain = evaluate(load("accounting"), evidence, {})
    result = observation(arm, float(params["confidence"]))
    sentence = statement.observation_sentence(result, arm)
    fault = plain.verdict is Verdict.FAULT
    return CheckResult(
        verdict=Verdict.FAULT if fault else Verdict.INCONCLUSIVE,
        summary=f"accounting: {plain.summary}" if fault else sentence,
        n=len(arm.requests),
        effect=result.distance_low,
        margin=float(params["margin"]),
        findings=plain.findings,
        details={"observation": asdict(result), "sentence": sentence, **_small_print(arm)},
    )


def observation(arm: ArmRecord, confidence: float) -> Observation:
    """Lower bounds and directions, as far as the arm's level and rows allow."""
    level = int(arm.level)
    if level < Level.L2 or unreadable(arm) is not None:
        return observe(min(level, 1), confidence, ())
    table = tabulate(arm.requests, np.random.default_rng(seed_of(arm.requests))).table
    scores = [PredictableScore("log p", 2, table.logp[:, 0], table.logp[:, 1], float(np.log(LOG_FLOOR)), 0.0)]
    if level >= Level.L3 and table.known.any():
        leak = table.leak[table.known]
        scores.append(PredictableScore("q / (p + q)", 3, leak[:, 0], leak[:, 1], 0.0, 1.0))
    return observe(level, confidence, tuple(scores), _witness(arm, 1.0 - (1.0 - confidence) * WITNESS_SHARE))


def _witness(arm: ArmRecord, confidence: float) -> WitnessEstimate:
    """Every second response selects the witness; the other responses measure it."""
    parts: list[Binned] = []
    for request in arm.requests:
        made = decisions(request)
        parts.append(binned(made.p, made.q, made.token))
    tokens = Binned(np.concatenate([part.mass for part in parts]), np.concatenate([part.cell for part in parts]))
    fold = np.repeat(np.arange(len(parts)) % 2 == 0, [len(part.cell) for part in parts])
    return witness(tokens, fold, confidence)


def _plan(params: Params, _design: Design) -> SampleSize | None:
    # half of the margin for each term
    error = (1.0 - float(params["confidence"])) / 2.0
    return bound_need(float(params["margin"]) / 2.0, 0.0, error, unit="prompts")


CHECK = Check(
    name="transcript",
    claim="transcript",
    defaults={"margin": 0.05, "confidence": 0.99, "alpha": 0.001, "max_findings": 20},
    run=_run,
    applies=needs_key,
    foresee=foresees_key,
    null="what speculation emits follows the reference's law",
    effect="total variation per token",
    plan=_plan,
    companions=(ArmKind.ANCHOR,),
    covers=frozenset({Group.DRAFTING, Group.PARAMETERS, Group.BATCH, Group.TREES}),
    examines=anchored,
)
