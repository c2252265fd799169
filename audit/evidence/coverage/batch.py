"""What the other rows of a batch did in each step of a request, from the facts that the requests recorded.

A request records the call of the loop that served it (`call`), its row and the
round in which it was admitted (`row`, `round`), and the rounds in which a row with
other sampling parameters was active (`unlike`). Every active row takes one step
per round, so step k ran in round `round` + k. Neighbours that a backend does not
record count as rows with other parameters only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audit.evidence.coverage.view import BatchFacts, Counts, Mask
from audit.evidence.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Stay:
    """One request's stay in its row: S steps."""

    key: str
    call: str
    row: int
    start: int
    lengths: Counts
    """[S] context length of each step."""
    drafts: Counts
    unlike: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        """The last round."""
        return self.start + len(self.lengths) - 1

    @property
    def rounds(self) -> slice:
        """The rounds of its steps."""
        return slice(self.start, self.start + len(self.lengths))


def batches(stays: Iterable[Stay]) -> Mapping[str, BatchFacts]:
    """Facts by request id."""
    calls: dict[str, list[Stay]] = {}
    for stay in stays:
        calls.setdefault(stay.call, []).append(stay)
    return {stay.key: facts for together in calls.values() for stay, facts in _facts(together)}


def stay_of(request: RequestRecord) -> Stay | None:
    """A request's stay; None if it does not record its row and round."""
    trace, facts = request.trace, request.trace.header.facts
    if "row" not in facts or "round" not in facts:
        return None
    unlike = tuple((int(first), int(last)) for first, last in facts.get("unlike", ()))
    # copies: views would keep every column of the trace in memory
    lengths, drafts = trace.position.astype(np.int64), trace.n_drafted.astype(np.int64)
    place = str(facts.get("call")), int(facts["row"]), int(facts["round"])
    return Stay(request.request_id, *place, lengths, drafts, unlike)


def _facts(stays: Sequence[Stay]) -> Iterable[tuple[Stay, BatchFacts]]:
    count = 1 + max(stay.end for stay in stays)
    admitted = np.bincount([stay.start for stay in stays], minlength=count)
    ended = np.bincount([max(stay.end, 0) for stay in stays], minlength=count)
    lengths, drafts = (_Extremes.of(stays, name, count) for name in ("lengths", "drafts"))
    earliest: dict[int, int] = {}
    for stay in stays:
        earliest[stay.row] = min(stay.end, earliest.get(stay.row, stay.end))
    for stay in stays:
        steps = np.arange(stay.start, stay.start + len(stay.lengths))
        yield (
            stay,
            BatchFacts(
                reused=earliest[stay.row] < stay.start,
                joined=(admitted[steps] > 0) & (steps > stay.start),
                finished=(ended[steps] > 1) & (steps == stay.end),
                lengths=lengths.other_than(stay.lengths, stay.rounds),
                drafts=drafts.other_than(stay.drafts, stay.rounds),
                parameters=_within(steps, stay.unlike),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Extremes:
    """Smallest and largest value of any row, per round."""

    low: Counts
    high: Counts

    @classmethod
    def of(cls, stays: Sequence[Stay], name: str, count: int) -> _Extremes:
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        for stay in stays:
            values = getattr(stay, name)
            low[stay.rounds] = np.minimum(low[stay.rounds], values)
            high[stay.rounds] = np.maximum(high[stay.rounds], values)
        return cls(low, high)

    def other_than(self, values: Counts, rounds: slice) -> Mask:
        """[S] true where some row has another value."""
        return np.asarray((self.low[rounds] != values) | (self.high[rounds] != values))


def _within(steps: Counts, spans: Sequence[tuple[int, int]]) -> Mask:
    mask = np.zeros(len(steps), np.bool_)
    for first, last in spans:
        mask |= (steps >= first) & (steps <= last)
    return mask
