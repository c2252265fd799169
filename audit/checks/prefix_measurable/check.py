"""Prefix-measurable drafts: no drafted token is dropped because of its own probability.

Claim: law. Null: the prefix alone decides whether a place keeps its drafted token, so that a kept token follows q.
Statistic: kept tokens with q below each of a grid of thresholds against their expectation, smooth tests of the
randomised ranks by q, by p / q and by id, and a score test of how sure the draft is after the token (estimated from
other requests); Holm. Effect: the largest share of kept tokens that is missing below a threshold, a lower bound of the
total variation between the kept tokens' law and q; bound: its 99 % upper bound over all thresholds. Drafted tokens that
were reached and never examined are faults, whatever chance did. Where the arm declares steady drafts, every place is
filled, which `accounting` verifies: without a departure the claim is then certified by enough tokens and does not exist
for fewer. Assumes that q is the draft's law (q_contract). Cannot see: dropping by properties of the token other than
its q, p, id and continuation; dropping of deterministic drafts, where every rule is a function of the prefix.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.checks.prefix_measurable.table import ORDERS, THRESHOLDS, KeptTokens, kept_tokens, never_examined
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import unreadable
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.acceptance.expected import bernoulli_test
from audit.stats.anytime.scores import Moments, score_test
from audit.stats.laws import normal_isf
from audit.stats.multiplicity import holm, percent
from audit.stats.pit import smooth_test
from audit.stats.power import bernoulli_need, detectable_shift
from audit.stats.sample_size import SampleSize
from engine.core.types import Floats, QKind

POOLED = "all requests"
MIN_TOKENS = 30
SHARE = 0.3
"""Mass of q below a threshold, as assumed by the plan."""


@dataclass(frozen=True, slots=True)
class KeptTest:
    """One test of kept tokens. `effect` is the missing share if the test defines one."""

    name: str
    n: int
    statistic: float
    p: float
    effect: float | None = None


@dataclass(frozen=True, slots=True)
class MissingShare:
    """Missing share of kept tokens with q below a threshold, and its bound over all thresholds."""

    effect: float
    bound: float
    detectable: float


NOT_DRAWN = "no drafted token was drawn: whatever is done with them is a function of the prefix"
STEADY = "the arm declares drafts of full length, from which nothing is dropped; accounting verifies the lengths"


def _applies(evidence: Evidence) -> str | None:
    if not any(np.any(request.trace.q_kind == QKind.FULL) for request in evidence.candidate.requests):
        return NOT_DRAWN
    return None


def _foresee(params: Params, design: Design) -> str | None:
    if not design.shown.drawn:
        return NOT_DRAWN
    need = _need(params, design) if design.shown.steady else None
    return STEADY if need is not None and design.tokens < need.units else None


def battery(kept: KeptTokens, generator: np.random.Generator) -> list[KeptTest]:
    """Run all tests for which there are enough tokens."""
    return [*_below(kept), *_ranked(kept, generator), *_sure(kept)]


def _below(kept: KeptTokens) -> Iterator[KeptTest]:
    n = len(kept.below)
    for k, threshold in enumerate(THRESHOLDS):
        if n >= MIN_TOKENS and kept.chance[:, k].sum() > 0:
            test = bernoulli_test(kept.below[:, k], kept.chance[:, k])
            missing = (test.expected - test.observed) / n
            yield KeptTest(f"kept tokens with q below {threshold:g}", n, test.z, test.p, missing)


def _ranked(kept: KeptTokens, generator: np.random.Generator) -> Iterator[KeptTest]:
    for k, order in enumerate(ORDERS):
        u = kept.ranks[:, k]
        u = u[~np.isnan(u)]
        if len(u) >= MIN_TOKENS:
            test = smooth_test(u, generator)
            yield KeptTest(f"kept tokens ~ q, by {order}", test.n, test.statistic, test.p)


def _sure(kept: KeptTokens) -> Iterator[KeptTest]:
    scores = kept.confidence[~np.isnan(kept.confidence[:, 0])]
    if len(scores) >= MIN_TOKENS:
        test = score_test(scores[:, 0], Moments(scores[:, 1], scores[:, 2], scores[:, 3]), 1.0)
        yield KeptTest("how sure the draft is after a kept token", test.n, test.z, test.p)


def missing(kept: KeptTokens, alpha: float, confidence: float, tests: int) -> MissingShare:
    """The largest missing share below a threshold; the bound holds at all thresholds jointly."""
    n = len(kept.below)
    if not n:
        return MissingShare(0.0, 1.0, 1.0)
    chance = np.minimum(kept.chance, 1.0)
    shares = (chance - kept.below).mean(axis=0)
    sd = np.sqrt(np.sum(chance * (1.0 - chance), axis=0)) / n
    above = float(normal_isf((1.0 - confidence) / len(THRESHOLDS)))
    seen = detectable_shift(alpha / (2 * max(tests, 1)))
    # n tokens resolve a share only to a few tokens
    least = above**2 / (3.0 * n)
    bound = float(np.max(shares + above * sd)) + least
    return MissingShare(max(0.0, float(shares.max())), min(1.0, bound), min(1.0, seen * float(sd.max()) + least))


def _passed_over(arm: ArmRecord) -> Iterator[Finding]:
    for request in arm.requests:
        for step in never_examined(request.trace):
            yield Finding(request.request_id, step, "a drafted token was reached and never examined: it was dropped")


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    steady = arm.effective.steady_drafts is not None
    undecided = Verdict.NOT_RUN if steady else Verdict.INCONCLUSIVE
    reason = unreadable(arm) or shared_numbers(arm)
    if reason is not None:
        return CheckResult(undecided, f"{STEADY} ({reason})" if steady else reason)
    generator = np.random.default_rng(seed_of(arm.requests))
    kept = kept_tokens(arm.requests, arm.effective.gamma, generator)
    tests = battery(kept, generator)
    adjusted = holm([test.p for test in tests])
    alpha, margin = float(params["alpha"]), float(params["margin"])
    rejected = [i for i in np.argsort(adjusted, kind="stable") if adjusted[i] < alpha]
    findings = [*_passed_over(arm), *(_finding(tests[i], float(adjusted[i])) for i in rejected)]
    lacking = missing(kept, alpha, float(params["confidence"]), len(tests))
    enough = bool(tests) and max(lacking.bound, lacking.detectable) <= margin
    best = tests[int(np.argmin(adjusted))] if tests else None
    summary = _summary(findings, len(kept.below), len(tests), lacking, params, enough=enough)
    idle = steady and not findings and not enough
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if enough else undecided,
        summary=f"{STEADY}. So far: {summary}" if idle else summary,
        n=len(kept.below),
        statistic=best.statistic if best else None,
        p_value=float(adjusted.min()) if tests else None,
        effect=lacking.effect,
        bound=lacking.bound,
        margin=margin,
        detectable=lacking.detectable,
        findings=tuple(findings[: int(params["max_findings"])]),
        details=_details(kept, tests, adjusted),
    )


def _finding(test: KeptTest, adjusted: float) -> Finding:
    share = "" if test.effect is None else f", a share of {test.effect:.3g} is missing"
    return Finding(
        POOLED, 0, f"{test.name}: statistic {test.statistic:.4g}, adjusted p {adjusted:.2g}, n {test.n}{share}"
    )


def _summary(
    findings: list[Finding], n: int, tests: int, lacking: MissingShare, params: Params, *, enough: bool
) -> str:
    if findings:
        first = findings[0]
        return f"kept drafted tokens do not follow q; {len(findings)} findings, first: {first.message}"
    if not tests:
        return f"{n} kept drafted tokens are fewer than {MIN_TOKENS}"
    bound = f"at most a share of {lacking.bound:.3g} was dropped for a low q ({percent(float(params['confidence']))})"
    text = f"no departure in {tests} tests of {n} kept tokens; {bound}"
    if enough:
        return text
    undecided = f"which does not decide on the margin {float(params['margin']):g}"
    return f"{text}, {undecided}; detectable share {lacking.detectable:.3g}"


def _details(kept: KeptTokens, tests: list[KeptTest], adjusted: Floats) -> dict[str, object]:
    ended = kept.ended
    return {
        "tests": [
            {"name": item.name, "n": item.n, "statistic": item.statistic, "p": item.p, "p_adjusted": float(p)}
            | ({} if item.effect is None else {"missing": item.effect})
            for item, p in zip(tests, adjusted, strict=True)
        ],
        # a draft may legitimately end because of its last token: reported, not judged
        "drafts_ended_early": int(ended.sum()),
        "mean_rank_where_ended": _mean(kept.ranks[ended, 0]),
        "mean_rank_elsewhere": _mean(kept.ranks[~ended, 0]),
    }


def _mean(ranks: Floats) -> float | None:
    return float(ranks.mean()) if len(ranks) else None


def _plan(params: Params, design: Design) -> SampleSize | None:
    return None if design.shown.steady else _need(params, design)


def _need(params: Params, design: Design) -> SampleSize | None:
    if design.greedy or not design.gamma:
        return None
    alpha = float(params["alpha"]) / (len(THRESHOLDS) + len(ORDERS) + 1)
    need = bernoulli_need(SHARE, -min(SHARE, float(params["margin"])), alpha)
    return dataclasses.replace(need, unit="drafted tokens", effect=math.fabs(need.effect))


CHECK = Check(
    name="prefix_measurable",
    claim="law",
    needs=Level.L3,
    defaults={"margin": 0.06, "confidence": 0.99, "alpha": 0.001, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="whether a drafted token is kept for verification is decided by its prefix",
    effect="share of kept drafted tokens missing below a threshold of q",
    plan=_plan,
    covers=frozenset({Group.DRAFTING}),
)
