"""q contract: the recorded q is the law that the drafted token was drawn from.

Claim: law. Null: the q row and the recorded number of each examined drafted token reproduce it, and its acceptance test
used that row. Statistic: draws that differ; any is a fault. Effect and bound: their share and its 99 % Clopper-Pearson
upper bound. Tokens whose number is not recorded are judged by their randomised rank in q and in p / q instead (smooth
tests, Holm); there the effect is the largest distance between the distribution function of those ranks and the uniform
one, bounded with `confidence` (Dvoretzky-Kiefer-Wolfowitz, Massart 1990). Assumes that the record is what happened.
Cannot see: tokens drawn and left out of the record (prefix_measurable), at level `topk` an entry besides the token's of
a row of q that was not kept, drafts that were never examined, or whether the numbers are random (rng_streams). Ranks
bound departures along their order only.

A whole row of q that level `topk` keeps is under the contract of level `full`: its draw is repeated from all of its
entries, and it has the recorded cells. The choice of the sample is the record's (`engine.record.rows.kept_rows`);
`replay` repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import ByRequest, Check, ReadPart, read_part
from audit.checks.base.plans import none_of
from audit.checks.q_contract.columns import cell_laws, drawn_tokens, kept_tokens, lumped_draws, lumped_fault, redrawn
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import EMPTY
from audit.evidence.draft_draws import (
    DraftDraw,
    contract_fault,
    draft_draws,
    drawn_again,
    draws_from,
    target_row,
    undrawn,
)
from audit.evidence.random_numbers import seed_of
from audit.evidence.reading import RequestReading
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.tally import ROUNDED
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.multiplicity import holm
from audit.stats.pit import SmoothTest, intervals, smooth_test
from audit.stats.power import replay_effect
from engine.core.types import Floats, QKind, RecordLevel
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace
from engine.sampling.rng import Randomness

SUMMED = 1e-9
"""Tolerance of sums over whole rows."""


def kept_draws(trace: Trace, wanted: NDArray[np.int64]) -> Iterator[DraftDraw]:
    """The examined tokens with the numbers `wanted`, ascending, whose rows of q are kept."""
    chosen = frozenset(wanted.tolist())
    ends = np.cumsum(trace.kept_q_count, dtype=np.int64).tolist()
    counts = trace.kept_q_count.tolist()
    parts = {
        x: slice(end - count, end)
        for x, end, count in zip(trace.kept_examined.tolist(), ends, counts, strict=True)
        if x in chosen
    }

    def row(x: int) -> Floats | None:
        if x not in parts:
            return None
        q = np.zeros(trace.header.vocabulary)
        q[trace.kept_q_id[parts[x]]] = trace.kept_q[parts[x]]
        return q

    if parts:
        steps = np.searchsorted(np.cumsum(trace.n_examined, dtype=np.int64), wanted, side="right")
        yield from draws_from(trace, row, np.unique(steps).tolist())


def kept_fault(draw: DraftDraw, trace: Trace, randomness: Randomness) -> str | None:
    """Why the kept row cannot be the law of the token or of the place; None if it may."""
    message = contract_fault(draw)
    if message:
        return message
    again = drawn_again(draw, trace, randomness)
    if again is not None and again != draw.token:
        return f"drafted token {draw.token} at position {draw.position}: its whole q and its number give {again}"
    # the recorded cells hold q of a place only where one token was drawn there
    if draw.at is None or np.isnan(trace.tail[draw.at, 1]):
        return None
    used = trace.cell_id[draw.at] != PAD
    ids = trace.cell_id[draw.at][used].astype(np.int64)
    if (ids < len(draw.q)).all():
        outside = float(np.delete(draw.q, ids).sum())
        near = np.allclose(trace.cell_q[draw.at][used], draw.q[ids], rtol=ROUNDED, atol=ROUNDED)
        if near and abs(float(trace.tail[draw.at, 1]) - outside) <= SUMMED:
            return None
    return f"drafted token {draw.token} at position {draw.position}: the cells of q are not those of its whole row"


@dataclass(frozen=True, slots=True)
class RequestDraws:
    """One request's draws. `ranks` [N, 2, 2]: the intervals of tokens without a number, by q and by p / q, as the mass
    before the token and its own; NaN if unknown.
    """

    replayed: int
    findings: tuple[Finding, ...]
    ranks: Floats
    kept: int = 0
    """Whole rows of q that level `topk` kept."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """The smooth test of one order, and the distance of its ranks from uniform."""

    order: str
    test: SmoothTest
    distance: float
    bound: float


DETERMINISTIC = "drafted tokens are recorded as deterministic, but numbers drew them"
NOT_DRAWN = "no drafted token was drawn: every one is a function of its prefix, or has no q"


def _applies(evidence: Evidence) -> str | None:
    # one at a time: traces load lazily, and a list of them would keep every column in memory
    traces = (request.trace for request in evidence.candidate.requests)
    if not any(np.any(t.q_kind == QKind.FULL) or np.any(~np.isnan(t.node_uniform)) for t in traces):
        return NOT_DRAWN
    return None


def judge_request(request: RequestRecord) -> RequestDraws:
    """Redraw every token."""
    trace = request.trace
    if trace.header.level is RecordLevel.TOPK:
        return _judge_lumped(request)
    randomness = Randomness(trace.header.sampling.seed, trace.header.stream)
    findings = [Finding(request.request_id, step, DETERMINISTIC) for step in undrawn(trace)]
    replayed, ranks = 0, []
    for draw in draft_draws(trace):
        message = contract_fault(draw)
        again = None if message else drawn_again(draw, trace, randomness)
        replayed += bool(message) or again is not None
        if again is not None and again != draw.token:
            message = f"drafted token {draw.token} at position {draw.position}: its q and its number give {again}"
        if message:
            findings.append(Finding(request.request_id, draw.step, message))
        elif again is None:
            ranks.append(_ranks(draw.token, draw.q, target_row(draw, trace)))
    return RequestDraws(replayed, tuple(findings), np.array(ranks, dtype=np.float64).reshape(-1, 2, 2))


def _judge_lumped(request: RequestRecord) -> RequestDraws:
    """The same at level `topk`; ranks are those of cells."""
    trace = request.trace
    findings = [Finding(request.request_id, step, DETERMINISTIC) for step in undrawn(trace)]
    drawn, unnumbered = drawn_tokens(trace), []
    for draw in lumped_draws(trace, drawn.strange):
        message = lumped_fault(draw)
        if message:
            findings.append(Finding(request.request_id, draw.step, message))
        elif not redrawn(draw):
            unnumbered.append(draw)
    randomness = Randomness(trace.header.sampling.seed, trace.header.stream)
    kept = kept_tokens(trace)
    for whole in kept_draws(trace, kept.strange):
        message = kept_fault(whole, trace, randomness)
        if message:
            findings.append(Finding(request.request_id, whole.step, message))
    laws = cell_laws(trace, unnumbered) if unnumbered else []
    ranks = [_ranks(law.cell, law.q, law.p) for law in laws if law is not None]
    redone = drawn.count - len(unnumbered)
    return RequestDraws(redone, tuple(findings), np.array(ranks, dtype=np.float64).reshape(-1, 2, 2), kept.count)


def _ranks(drafted: int, law: Floats, p: Floats | None) -> Floats:
    """[2, 2] a token's intervals by q and by p / q."""
    token, q = np.array([drafted]), law[None]
    orders = [q] if p is None else [q, np.divide(p[None], q, out=np.full_like(q, np.inf), where=q > 0)]
    result = [intervals(q, order, token) for order in orders]
    unknown = [(math.nan, math.nan)] * (2 - len(result))
    return np.array([*((float(item.below[0]), float(item.own[0])) for item in result), *unknown])


def rank_tests(ranks: Floats, generator: np.random.Generator, confidence: float) -> list[RankTest]:
    """One test per order with ranks."""
    columns = {"drafted ~ q, by rank": ranks[:, 0], "drafted ~ q, by p / q": ranks[:, 1]}
    result = {name: np.sort(column[~np.isnan(column)]) for name, column in columns.items()}
    return [
        RankTest(name, smooth_test(u, generator), *_distance(u, confidence)) for name, u in result.items() if len(u)
    ]


def _distance(u: Floats, confidence: float) -> tuple[float, float]:
    """Kolmogorov's distance of sorted `u` [n] from uniform, and its upper bound."""
    n = len(u)
    steps = np.arange(n + 1) / n
    distance = float(max(np.max(steps[1:] - u), np.max(u - steps[:-1])))
    return distance, min(1.0, distance + math.sqrt(math.log(2.0 / (1.0 - confidence)) / (2.0 * n)))


def _draws(reading: RequestReading) -> RequestDraws:
    return judge_request(reading.request)


class _Contract:
    """The draws of the requests so far."""

    def __init__(self, evidence: Evidence, params: Params) -> None:
        self._params = params
        self._unreadable = None if len(evidence.candidate.requests) else EMPTY
        self._generator = np.random.default_rng(seed_of(evidence.candidate.requests))
        self._judged: list[RequestDraws] = []
        self._ranks: list[Floats] = []

    def add(self, part: ReadPart[RequestDraws]) -> None:
        """Take the draws of the next request; random numbers turn intervals into ranks."""
        self._unreadable = self._unreadable or part.unreadable
        if part.taken is not None:
            below, own = part.taken.ranks[:, :, 0], part.taken.ranks[:, :, 1]
            self._ranks.append(below + self._generator.random(own.shape) * own)
            self._judged.append(part.taken)

    def result(self) -> CheckResult:
        """The check's result."""
        reason = self._unreadable
        if reason is not None:
            return CheckResult(Verdict.INCONCLUSIVE, reason)
        params, judged = self._params, self._judged
        ranked = rank_tests(np.concatenate(self._ranks), self._generator, float(params["confidence"]))
        adjusted = holm([item.test.p for item in ranked])
        rejected = [
            _finding(item, float(p)) for item, p in zip(ranked, adjusted, strict=True) if p < float(params["alpha"])
        ]
        wrong = [finding for item in judged for finding in item.findings]
        return _result(judged, [*wrong, *rejected], len(wrong), ranked, adjusted, params)


def _result(
    judged: Sequence[RequestDraws],
    findings: list[Finding],
    wrong: int,
    ranked: list[RankTest],
    adjusted: Floats,
    params: Params,
) -> CheckResult:
    replayed, unnumbered = sum(item.replayed for item in judged), sum(len(item.ranks) for item in judged)
    confidence = float(params["confidence"])
    shares = upper_bound(min(wrong, replayed), replayed, confidence)
    # ranks too few to show a departure certify nothing, however uniform they are
    by_rank = max((item.bound for item in ranked), default=0.0)
    shown = not unnumbered or _detectable(unnumbered, confidence) <= float(params["rank_margin"])
    worst = max(ranked, key=lambda item: item.distance, default=None)
    margin, rank_margin = float(params["margin"]), float(params["rank_margin"])
    by_number = replayed > 0 or worst is None
    within = replayed + unnumbered > 0 and (not replayed or shares <= margin) and by_rank <= rank_margin and shown
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if within else Verdict.INCONCLUSIVE,
        summary=_summary(findings, wrong, replayed, shares, unnumbered, by_rank, within),
        n=replayed + unnumbered,
        statistic=float(wrong) if by_number or worst is None else worst.test.statistic,
        p_value=float(adjusted.min()) if len(adjusted) else None,
        effect=(wrong / replayed if replayed else None) if by_number or worst is None else worst.distance,
        bound=shares if by_number else by_rank,
        margin=margin if by_number else rank_margin,
        detectable=replay_effect(replayed) if by_number else _detectable(unnumbered, confidence),
        findings=tuple(findings[: int(params["max_findings"])]),
        details=_details(judged, wrong, replayed, ranked, adjusted, confidence),
    )


def _detectable(n: int, confidence: float) -> float:
    """Smallest distance whose confidence band excludes 0."""
    return min(1.0, 2.0 * math.sqrt(math.log(2.0 / (1.0 - confidence)) / (2.0 * n)))


def _finding(test: RankTest, p: float) -> Finding:
    message = f"{test.order}: statistic {test.test.statistic:.4g}, adjusted p {p:.2g}, n {test.test.n}"
    return Finding(POOLED, 0, f"{message}; ranks are {test.distance:.3g} from uniform")


def _summary(
    findings: list[Finding], wrong: int, replayed: int, shares: float, unnumbered: int, by_rank: float, within: bool
) -> str:
    if findings:
        first = findings[0]
        text = f"{wrong} of {replayed} drafted tokens were not drawn from their q" if wrong else "ranks are not uniform"
        return f"{text}; first in {first.request}, step {first.step}: {first.message}"
    if not replayed + unnumbered:
        return "no drafted token that was drawn was examined"
    parts = [f"{replayed} drafted tokens drawn again, none differs; at most a share of {shares:.3g} does"]
    ranks = f"{unnumbered} tokens without a number: ranks in q at most {by_rank:.3g} from uniform"
    parts = (parts if replayed else []) + ([ranks] if unnumbered else [])
    return "; ".join(parts + ([] if within else ["not within the margin: more drafted tokens are needed"]))


def _details(
    judged: Sequence[RequestDraws],
    wrong: int,
    replayed: int,
    ranked: list[RankTest],
    adjusted: Floats,
    confidence: float,
) -> dict[str, object]:
    broken = sum(1 for item in judged if item.findings)
    return {
        "replayed": replayed,
        "violations": wrong,
        "without_number": sum(len(item.ranks) for item in judged),
        "requests_with_violations": broken,
        "kept_rows": sum(item.kept for item in judged),
        "request_bound": upper_bound(broken, len(judged), confidence),
        "ranks": [
            {
                "order": item.order,
                "n": item.test.n,
                "statistic": item.test.statistic,
                "p_adjusted": float(p),
                "distance": item.distance,
                "distance_bound": item.bound,
            }
            for item, p in zip(ranked, adjusted, strict=True)
        ],
    }


BY_REQUEST = ByRequest(partial(read_part, _draws), _Contract)
CHECK = Check(
    name="q_contract",
    claim="law",
    needs=Level.L3,
    defaults={"margin": 0.01, "rank_margin": 0.1, "confidence": 0.99, "alpha": 0.001, "max_findings": 20},
    run=BY_REQUEST.run,
    by_request=BY_REQUEST,
    applies=_applies,
    foresee=lambda _params, design: None if design.shown.drawn else NOT_DRAWN,
    null="each drafted token was drawn from the q that its acceptance test used",
    effect="share of drafted tokens not drawn from their q",
    plan=none_of("drafted tokens", lambda design: design.gamma and not design.greedy),
    covers=frozenset({Group.DRAFTING}),
)
