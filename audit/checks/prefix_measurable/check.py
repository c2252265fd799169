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

Kept drafted tokens are numbers with a known law: if the prefix decides whether a place keeps its drafted token, a kept
token follows q; if the token itself decides, it follows q given that it was kept. Rows of q are read request by request
and not stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import Check, Design
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import unreadable
from audit.evidence.draft_draws import DraftDraw, draft_draws, target_row
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.records import ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.acceptance.expected import bernoulli_test
from audit.stats.anytime.scores import Moments, moments, score_test
from audit.stats.laws import normal_isf
from audit.stats.multiplicity import holm, percent
from audit.stats.pit import pit, smooth_test
from audit.stats.power import bernoulli_need, detectable_shift
from audit.stats.sample_size import SampleSize
from engine.core.types import Floats, QKind, Role
from engine.record.trace import StepView, Trace, steps_of

MIN_TOKENS = 30
SHARE = 0.3
"""Mass of q below a threshold, as assumed by the plan."""
THRESHOLDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
ORDERS: Final = ("q", "p / q", "id")


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """[N] kept tokens of one arm from q rows with more than one possible token; T thresholds."""

    ranks: Floats
    """[N, 3] randomised ranks in the three orders, NaN if unknown."""
    below: NDArray[np.bool_]
    """[N, T] whether q of the token is below each threshold."""
    chance: Floats
    """[N, T] mass of q on such tokens."""
    confidence: Floats
    """[N, 4] confidence of the draft after the token, from other requests; its mean, variance and third moment."""
    ended: NDArray[np.bool_]
    """[N] whether the draft ended with the token, before `gamma` tokens."""


def kept_tokens(requests: Sequence[RequestRecord], gamma: int | None, generator: np.random.Generator) -> KeptTokens:
    """Collect all requests in order. `generator` randomises the ranks; without `gamma` no draft counts as ended."""
    sureness = [_sureness(requests[1 - fold :: 2]) for fold in (0, 1)]
    parts = [_kept(request.trace, gamma, sureness[i % 2], generator) for i, request in enumerate(requests)]
    return KeptTokens(
        ranks=np.concatenate([part.ranks for part in parts]),
        below=np.concatenate([part.below for part in parts]),
        chance=np.concatenate([part.chance for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
    )


def _sureness(requests: Sequence[RequestRecord]) -> Floats | None:
    """[V] mean of the largest q after each token, the overall mean for unseen tokens; None without data."""
    result = [(draw.previous, float(draw.q.max())) for request in requests for draw in draft_draws(request.trace)]
    if not result:
        return None
    tokens, largest = np.array([token for token, _ in result]), np.array([value for _, value in result])
    size = requests[0].trace.header.vocabulary
    counts = np.bincount(tokens, minlength=size)
    sums = np.bincount(tokens, weights=largest, minlength=size)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), largest.mean()))


def _kept(trace: Trace, gamma: int | None, sureness: Floats | None, generator: np.random.Generator) -> KeptTokens:
    draws = [draw for draw in draft_draws(trace) if 0.0 < float(draw.q.max()) < 1.0]
    count, size = len(draws), trace.header.vocabulary
    v = generator.random((count, len(ORDERS)))
    q = np.stack([draw.q for draw in draws]) if draws else np.empty((0, size))
    tokens = np.array([draw.token for draw in draws], dtype=np.int64)
    own = q[np.arange(count), tokens]
    drafted = np.array([int(trace.n_drafted[draw.step]) for draw in draws], dtype=np.int64)
    reached = np.array([draw.position - int(trace.position[draw.step]) + 1 for draw in draws], dtype=np.int64)
    return KeptTokens(
        ranks=np.array([_ranks(draw, trace, v[i]) for i, draw in enumerate(draws)]).reshape(-1, len(ORDERS)),
        below=own[:, None] < np.array(THRESHOLDS),
        chance=np.stack([np.where(q < item, q, 0.0).sum(axis=1) for item in THRESHOLDS], axis=1),
        confidence=_scored(q, tokens, sureness),
        ended=np.asarray((reached == drafted) & (drafted < (gamma or 0))),
    )


def _ranks(draw: DraftDraw, trace: Trace, v: Floats) -> Floats:
    q, token = draw.q[None], np.array([draw.token])
    p = target_row(draw, trace)
    ratio = None if p is None else np.divide(p[None], q, out=np.full_like(q, np.inf), where=q > 0)
    ids = -np.arange(q.shape[1], dtype=np.float64)[None]
    keys = (q, ratio, ids)
    return np.array([np.nan if key is None else pit(q, key, token, v[k : k + 1])[0] for k, key in enumerate(keys)])


def _scored(q: Floats, tokens: NDArray[np.int64], sureness: Floats | None) -> Floats:
    if sureness is None:
        return np.full((len(q), 4), np.nan)
    law = moments(np.broadcast_to(sureness, q.shape), q)
    return np.stack([sureness[tokens], law.mean, law.variance, law.third], axis=1)


def _skipped(trace: Trace, view: StepView) -> bool:
    """True if the step decided a place with drafted tokens without examining one; the trace is well-formed."""
    at = view.emitted.stop - 1
    if int(trace.role[at]) == Role.ACCEPTED:
        return False
    offered = np.flatnonzero(trace.node_parent[view.nodes] == int(trace.row[at]) - 1)
    # the tree rule skips later siblings once the earlier ones have used up p, but examines the first
    return bool(len(offered)) and int(offered[0]) not in trace.examined_node[view.examined]


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
        for view in steps_of(request.trace):
            if _skipped(request.trace, view):
                message = "a drafted token was reached and never examined: it was dropped"
                yield Finding(request.request_id, view.index, message)


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
    plan=lambda params, design: None if design.shown.steady else _need(params, design),
    covers=frozenset({Group.DRAFTING}),
)
