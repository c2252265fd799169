"""Token law: tokens alone, of any engine, follow the law of the target, whose files are here.

Claim: law. Null: each emitted token is drawn from p of the anchor's row (a pass of the target's own files over the same
text) given all that came before. Statistics: a sequential mixture over declared alternatives, valid at any stopping
time, and one-sample tests of all tokens (transforms in rank and id order, log p, the most likely token) and of how long
the samples of a prompt begin alike, Holm-adjusted; each half of `alpha`. Effect: the largest difference between the
frequency of a declared event (the most likely token, the two most likely, a repeat, a copy from the text) and its
probability, per token; bound: 99 % for all events together. At temperature 0 the law is one token: each that trails the
reference's most likely one by more than `lead_margin` nats is a fault, and the bound is that of their share. Assumes
that the engine's arithmetic agrees with the reference up to rounding, that the tokens are those that were drawn, and
independent random numbers between prompts. Cannot see: shifts of mass that keep ranks, ids and log p, single places
that are rare, faults of random numbers that repeat none, and alternatives below the detectable difference.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from audit.checks.base.interface import Check, Design, needs_anchor, needs_reference
from audit.checks.token_law.rows import EVENTS, TokenEvidence, gather
from audit.evidence.anchor.reference_laws import followed, not_followed
from audit.evidence.anchor.rows import row_at
from audit.evidence.coverage.examined import anchored
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import steps_by_token
from audit.evidence.law.battery import MIN_TOKENS, MIXTURE, ComponentTest, token_tests
from audit.evidence.law.table import moments_of
from audit.evidence.random_numbers import seed_of
from audit.evidence.records import ArmKind, Evidence, RequestRecord
from audit.evidence.verdicts import MAX_FINDINGS, POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.anytime.scores import score_test
from audit.stats.anytime.token_mixture import MixtureResult, mixture
from audit.stats.binomial import upper_bound
from audit.stats.multiplicity import holm, percent
from audit.stats.power import POWER, detectable_shift, zero_need
from audit.stats.sample_size import SampleSize
from audit.stats.tails import EventDeviation, event_deviation, radius

SPREAD: Final = 0.4
"""Standard deviation of one event that `plan` expects: at most 0.5."""
STEP: Final = 1.0


def _run(evidence: Evidence, params: Params) -> CheckResult:
    reason = not_followed(evidence)
    if reason is not None:
        return CheckResult(Verdict.INCONCLUSIVE, reason)
    requests = followed(evidence)
    if any(request.trace.header.sampling.greedy for request in requests):
        return _judge_likeliest(requests, params)
    generator = np.random.default_rng(seed_of(evidence.candidate.requests))
    result = gather(requests, int(params["max_tokens"]), generator)
    alpha = float(params["alpha"]) / 2.0
    process = mixture(result.ratios, alpha)
    tests = tuple(_tests(result, generator))
    adjusted = holm([test.p for test in tests])
    findings = [*result.impossible, *_departures(process, alpha), *_failed(tests, adjusted, alpha)]
    error = (1.0 - float(params["confidence"])) / len(EVENTS)
    deviations = [
        event_deviation(result.events.happened[:, at], result.events.expected[:, at], result.tokens, error)
        for at in range(len(EVENTS))
    ]
    bound = max(deviation.bound for deviation in deviations)
    enough = result.tokens >= int(params["min_tokens"]) and bound <= float(params["margin"])
    smallest = min([process.test.p, *adjusted])
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if enough else Verdict.INCONCLUSIVE,
        summary=_summary(findings, result, deviations, len(tests), params),
        n=result.tokens,
        statistic=process.test.log_max,
        p_value=0.0 if result.impossible else min(1.0, 2.0 * float(smallest)),
        effect=max(abs(deviation.difference) for deviation in deviations),
        bound=bound,
        margin=float(params["margin"]),
        detectable=_detectable(result, alpha),
        findings=tuple(findings[:MAX_FINDINGS]),
        details=_details(result, process, tests, deviations),
    )


def _tests(evidence: TokenEvidence, generator: np.random.Generator) -> Iterator[ComponentTest]:
    """The tests of a number of tokens that was fixed beforehand."""
    yield from token_tests(evidence.table, "all", generator)
    columns = evidence.table.argmax
    if len(columns) >= MIN_TOKENS:
        test = score_test(columns[:, 0], moments_of(columns), STEP)
        yield ComponentTest("most likely token", "all", test.n, test.z, test.p, test.effect, "mean 1 / (1 + p)")
    yield from evidence.apart


def _departures(process: MixtureResult, alpha: float) -> Iterator[Finding]:
    if process.test.log_max >= -math.log(alpha):
        leader = process.leaders[0]
        crossed = f"p {process.test.p:.2g} at any stopping time, crossed at token {process.test.crossing}"
        yield Finding(
            POOLED, 0, f"{MIXTURE}, led by {leader.name} (share {leader.share:.2g}): {crossed} of {process.test.n}"
        )


def _failed(tests: tuple[ComponentTest, ...], adjusted: Any, alpha: float) -> Iterator[Finding]:
    for at in np.argsort(adjusted, kind="stable"):
        if adjusted[at] < alpha:
            test = tests[at]
            numbers = f"statistic {test.statistic:.4g}, adjusted p {adjusted[at]:.2g}, n {test.n}"
            yield Finding(POOLED, 0, f"{test.title}: {numbers}, effect {test.effect:.3g} {test.unit}")


def _detectable(evidence: TokenEvidence, alpha: float) -> float | None:
    """The smallest leak of the most likely token, in total variation per token, that the score shows at `POWER`."""
    columns = evidence.table.argmax
    if len(columns) < MIN_TOKENS:
        return None
    # of a leak l the score's mean moves by l (s(top) - E_p s), the law by l (1 - p of the most likely token)
    span, distance = float(np.sum(columns[:, 4] - columns[:, 1])), float(np.sum(evidence.table.distance[:, 1]))
    spread = math.sqrt(float(np.sum(columns[:, 2])))
    if span <= 0.0:
        return None
    return min(1.0, detectable_shift(alpha / 8.0) * spread / span) * distance / len(columns)


def _summary(
    findings: list[Finding], evidence: TokenEvidence, deviations: list[EventDeviation], tests: int, params: Params
) -> str:
    edge = f"; {evidence.edge} tokens at the edge of a truncation are left out" if evidence.edge else ""
    if findings:
        return f"{len(findings)} departures from the law in {evidence.tokens} tokens; {findings[0].message}{edge}"
    worst = max(range(len(EVENTS)), key=lambda at: deviations[at].bound)
    level = percent(float(params["confidence"]))
    most = f"{deviations[worst].bound:.3g} ({EVENTS[worst]}, {level})"
    bound = f"frequencies of {len(EVENTS)} events differ by at most {most}"
    tested = f"no departure in {tests + 1} tests of {evidence.tokens} tokens"
    if evidence.tokens < int(params["min_tokens"]):
        return f"{tested}, fewer than {params['min_tokens']}; {bound}{edge}"
    return f"{tested}; {bound}{edge}"


def _details(
    evidence: TokenEvidence, process: MixtureResult, tests: tuple[ComponentTest, ...], deviations: list[EventDeviation]
) -> dict[str, Any]:
    sequential = {"name": MIXTURE, "stratum": "all", "n": process.test.n, "p": process.test.p}
    return {
        "tests": [
            sequential,
            *({"name": test.name, "stratum": test.stratum, "n": test.n, "p": test.p} for test in tests),
        ],
        "alternatives": [asdict(leader) for leader in process.leaders],
        "log_e": process.test.log_final,
        "crossed_at": process.test.crossing,
        "standard_error": max(one.error for one in deviations),
        "edge": evidence.edge,
        "events": {
            name: {"trials": one.trials, "difference": one.difference, "bound": one.bound}
            for name, one in zip(EVENTS, deviations, strict=True)
        },
    }


def _plan(params: Params, design: Design) -> SampleSize | None:
    """Tokens until the bound of every event is within the margin."""
    if design.greedy:
        return zero_need(float(params["margin"]), "tokens")
    error, margin = (1.0 - float(params["confidence"])) / len(EVENTS), float(params["margin"])
    units = int(params["min_tokens"])
    spread = design.assumed.spread or SPREAD
    # nine of ten clean runs deviate by less than 1.65 standard deviations
    while 1.65 * spread * math.sqrt(units) + radius(spread**2 * units, error) > margin * units:
        units = math.ceil(1.1 * units) + 1
    return SampleSize(units, "tokens", margin, 1.0 - float(params["confidence"]), POWER)


def _judge_likeliest(requests: Sequence[RequestRecord], params: Params) -> CheckResult:
    """Judge temperature 0: the tokens that trail the anchor row's most likely one by more than `lead_margin` nats."""
    tokens, near = sum(len(request.tokens) for request in requests), float(params["lead_margin"])
    findings = [finding for request in requests for finding in _behind(request, near)]
    bound = upper_bound(len(findings), tokens, float(params["confidence"]))
    text = f"{len(findings)} of {tokens} tokens trail the reference's most likely one by more than {near:g} nats"
    level = percent(float(params["confidence"]))
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if bound <= params["margin"] else Verdict.INCONCLUSIVE,
        summary=f"{text}; {findings[0].message}" if findings else f"{text}; at most {bound:.3g} of all do ({level})",
        n=tokens,
        statistic=float(len(findings)),
        effect=len(findings) / tokens if tokens else None,
        bound=bound,
        margin=float(params["margin"]),
        findings=tuple(findings[:MAX_FINDINGS]),
    )


def _behind(request: RequestRecord, near: float) -> Iterator[Finding]:
    steps = steps_by_token(request.trace)
    for index, token in enumerate(request.tokens):
        lead = row_at(request.trace, index).lead
        if lead < -near:
            message = f"token {index} is {token}, which another one leads by {-lead:.3g} nats in the reference's row"
            yield Finding(request.request_id, int(steps[index]), message)


CHECK = Check(
    name="token_law",
    claim="law",
    defaults={
        "alpha": 0.005,
        "confidence": 0.99,
        "margin": 0.06,
        "min_tokens": 500,
        "max_tokens": 100_000,
        "lead_margin": 0.5,
    },
    run=_run,
    applies=needs_anchor,
    foresee=needs_reference,
    null="each emitted token is drawn from p that the target alone has after the text before it",
    effect="difference between the frequency and the probability of an event, per token",
    plan=_plan,
    companions=(ArmKind.ANCHOR,),
    covers=frozenset({Group.DRAFTING, Group.PARAMETERS, Group.BATCH}),
    examines=anchored,
)
