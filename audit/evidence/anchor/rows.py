"""Distance between recorded rows and the reference's, position by position.

Two traces may hold whole rows (level `full`) or the largest entries and a tail (`topk`), in any combination. If a row
is known in part only, its distance is an interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import deciding_row, deciding_rows, steps_by_token
from audit.evidence.pairing import Pair, compared, pair_arms
from audit.evidence.records import ArmRecord, RequestRecord
from audit.stats.distance import Distances, distances, top_k_distance
from engine.core.sequences import agreeing, grouped
from engine.core.types import Floats, RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import Ints, Trace
from engine.sampling.transforms import BLOCK, softmax

LEVELS = (RecordLevel.TOPK, RecordLevel.FULL)


@dataclass(frozen=True, slots=True)
class AnchorRow:
    """One deciding row on K known tokens; the rest is a tail.

    `plain` [K] is p before top-k, top-p and min-p; `law` [K] after them, None if they need the whole row.
    `lead` is the score of the emitted token minus the best other one: negative if another token leads.
    """

    ids: NDArray[np.int64]
    plain: Floats
    law: Floats | None
    lead: float


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """E positions of one request and its reference pass."""

    request: str
    case: str
    step: NDArray[np.int64]
    law: Floats
    """[E] upper end of the total variation between the laws after all transforms."""
    plain: Floats
    """[E] lower end of the same distance before truncation, where no threshold can amplify a small difference."""
    lead: Floats
    """[E] the reference's score of the emitted token minus its best other one."""
    truncated: bool
    """True if `law` is after all transforms; False if the rows were too short for the truncation."""


@dataclass(frozen=True, slots=True)
class ReferenceNoise:
    """Differences of two correct passes after equal texts: M positions."""

    law: Floats
    plain: Floats
    lead: Floats


def row_at(trace: Trace, index: int) -> AnchorRow:
    """The row behind an emitted token of a well-formed trace at a level of `LEVELS`."""
    sampling, token = trace.header.sampling, int(trace.token[index])
    heat = sampling.temperature or 1.0
    if trace.header.level is RecordLevel.FULL:
        made = deciding_row(trace, index)
        ids = np.arange(len(made.p), dtype=np.int64)
        return AnchorRow(ids, softmax(made.scores / heat), made.p, _lead(made.scores, token))
    ids, scores = trace.top_id[index].astype(np.int64), trace.top_score[index]
    place = np.flatnonzero(ids == token)
    # a token outside the list scores at most as high as the last one in it
    lead = _lead(scores, int(place[0]) if len(place) else len(scores) - 1)
    plain = np.exp(scores / heat - float(trace.top_lse[index]))
    if sampling.greedy:
        return AnchorRow(ids, plain, np.eye(len(ids))[0], lead)
    whole = sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0
    return AnchorRow(ids, plain, plain if whole else None, lead)


def _lead(scores: Floats, place: int) -> float:
    return float(scores[place] - np.max(np.delete(scores, place))) if len(scores) > 1 else float("inf")


def compare(ours: RequestRecord, reference: RequestRecord, count: int) -> ReferenceComparison:
    """The first `count` positions of two requests, whose texts are equal before each of them."""
    whole = all(item.trace.header.level is RecordLevel.FULL for item in (ours, reference))
    if whole and ours.trace.header.vocabulary == reference.trace.header.vocabulary:
        return _compare_whole(ours, reference, count)
    pairs = [(row_at(ours.trace, i), row_at(reference.trace, i)) for i in range(count)]
    plain = [_apart(a.ids, a.plain, b.ids, b.plain) for a, b in pairs]
    law = [
        before if a.law is None or b.law is None else _apart(a.ids, a.law, b.ids, b.law)
        for (a, b), before in zip(pairs, plain, strict=True)
    ]
    return ReferenceComparison(
        request=ours.request_id,
        case=ours.case_id,
        step=np.array(steps_by_token(ours.trace)[:count], dtype=np.int64),
        law=np.array([float(item.high[0]) for item in law]),
        plain=np.array([float(item.low[0]) for item in plain]),
        lead=np.array([b.lead for _, b in pairs]),
        truncated=all(a.law is not None and b.law is not None for a, b in pairs),
    )


def _compare_whole(ours: RequestRecord, reference: RequestRecord, count: int) -> ReferenceComparison:
    """Compare whole rows of one vocabulary in blocks."""
    parts = [_block(ours.trace, reference.trace, begin, end) for begin, end in _blocks(ours.trace, count)]
    return ReferenceComparison(
        request=ours.request_id,
        case=ours.case_id,
        step=np.array(steps_by_token(ours.trace)[:count], dtype=np.int64),
        law=_joined([part.law for part in parts]),
        plain=_joined([part.plain for part in parts]),
        lead=_joined([part.lead for part in parts]),
        truncated=True,
    )


def _blocks(trace: Trace, count: int) -> Iterator[tuple[int, int]]:
    """Ranges of positions up to `count`, each small enough for its rows to fit in memory."""
    rows = max(1, BLOCK // trace.header.vocabulary)
    return ((begin, min(begin + rows, count)) for begin in range(0, count, rows))


def _block(ours: Trace, reference: Trace, begin: int, end: int) -> ReferenceNoise:
    first, second = deciding_rows(ours, begin, end), deciding_rows(reference, begin, end)
    plain = distances(_plain(first.scores, ours), _plain(second.scores, reference))
    return ReferenceNoise(
        distances(first.p, second.p).high, plain.low, _leads(second.scores, reference.token[begin:end])
    )


def _plain(scores: Floats, trace: Trace) -> Floats:
    heat = trace.header.sampling.temperature or 1.0
    scaled = scores / heat
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _leads(scores: Floats, token: Ints) -> Floats:
    """[E] leads of rows [E, V], as `_lead` of one."""
    others, at = scores.copy(), (np.arange(len(token)), token)
    others[at] = -np.inf
    return np.asarray(scores[at] - others.max(axis=1))


def _apart(ids: NDArray[np.int64], p: Floats, other_ids: NDArray[np.int64], other: Floats) -> Distances:
    if np.array_equal(ids, other_ids):
        return distances(p[None], other[None])
    return top_k_distance(ids, p, other_ids, other)


def unanchored(candidate: ArmRecord, anchor: ArmRecord) -> str | None:
    """Why the arms' rows cannot be compared, or None."""
    pairs = pair_arms(candidate, anchor).pairs
    if not pairs:
        return "the anchor arm has no request of the candidate's"
    for pair in pairs:
        if pair.candidate.tokens != pair.baseline.tokens:
            return f"request {pair.candidate.request_id}: the anchor was made over other tokens"
        for item in (pair.candidate, pair.baseline):
            reason = _unreadable(item)
            if reason is not None:
                return f"request {item.request_id}: {reason}"
    return None


def _unreadable(request: RequestRecord) -> str | None:
    if request.trace.header.level not in LEVELS:
        return f"recorded at level {request.trace.header.level}; rows need topk or full"
    fault = shape_fault(request.trace)
    if fault is not None:
        return f"the record contradicts itself ({fault}); see the replay check"
    return "a logits row holds NaN" if np.any(np.isnan(request.trace.logits)) else None


def compare_arms(candidate: ArmRecord, anchor: ArmRecord) -> tuple[ReferenceComparison, ...]:
    """Compare every request of the anchor arm."""
    pairs = pair_arms(candidate, anchor).pairs
    return tuple(compare(pair.candidate, pair.baseline, len(pair.candidate.tokens)) for pair in pairs)


def noise_between(first: ArmRecord | None, second: ArmRecord | None) -> ReferenceNoise:
    """Differences wherever both arms had the same text before them; empty without both arms or without rows."""
    result = list(_equal_texts(first, second)) if first is not None and second is not None else []
    return joined(ReferenceNoise(item.law, item.plain, change) for item, change in result)


def joined(parts: Iterable[ReferenceNoise]) -> ReferenceNoise:
    """All of them, one after another."""
    listed = list(parts)
    return ReferenceNoise(
        law=_joined([part.law for part in listed]),
        plain=_joined([part.plain for part in listed]),
        lead=_joined([part.lead for part in listed]),
    )


def _equal_texts(first: ArmRecord, second: ArmRecord) -> Iterator[tuple[ReferenceComparison, Floats]]:
    for pair in pair_arms(first, second).pairs:
        if _unreadable(pair.candidate) is None and _unreadable(pair.baseline) is None:
            yield compare(pair.candidate, pair.baseline, compared(pair)), _lead_changes(pair)


def _lead_changes(pair: Pair) -> Floats:
    count = agreeing(pair.candidate.tokens, pair.baseline.tokens)
    ours, theirs = (_leads_of(item.trace, count) for item in (pair.candidate, pair.baseline))
    known = np.isfinite(ours) & np.isfinite(theirs)
    return np.asarray(np.abs(ours[known] - theirs[known]))


def _leads_of(trace: Trace, count: int) -> Floats:
    """[count] leads of the first emitted tokens."""
    if trace.header.level is not RecordLevel.FULL:
        return np.array([row_at(trace, i).lead for i in range(count)])
    blocks = _blocks(trace, count)
    return _joined([_leads(deciding_rows(trace, *block).scores, trace.token[slice(*block)]) for block in blocks])


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def by_case(compared_requests: tuple[ReferenceComparison, ...]) -> Floats:
    """[C] mean distance of each prompt: over its requests the mean over positions; prompts are independent."""
    means = grouped((request.case, float(np.mean(request.law))) for request in compared_requests)
    return np.array([float(np.mean(values)) for values in means.values()])
