"""The other rows of a batch in each step of a request, from the facts that the requests recorded.

A request of the built-in loop records the call of the loop that served it (`call`), its row and the round in which it
was admitted (`row`, `round`), the rounds in which a row with other sampling parameters was active (`unlike`), and those
before which another request was withdrawn (`withdrawals`). Every active row takes one step per round, so step k ran in
round `round` + k. An engine that pauses requests and moves them
between rows records the rounds of all steps instead (`rounds`): what depends on rows and parameters is unknown there.
Neighbours that a backend does not record count as rows with other parameters only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audit.evidence.coverage.view import BatchFacts, Counts, Mask
from audit.evidence.records import RequestRecord
from engine.core.sequences import grouped


@dataclass(frozen=True, slots=True)
class Stay:
    """One request's stay in its batch: S steps."""

    key: str
    call: str
    row: int | None
    """None if the request had no row of its own."""
    start: int
    """The round of its admission, or of its first step."""
    rounds: Counts
    """[S] the round of each step."""
    lengths: Counts
    """[S] context length of each step."""
    drafts: Counts
    unlike: tuple[tuple[int, int], ...]
    withdrawals: tuple[int, ...]

    @property
    def end(self) -> int:
        """The last round."""
        return int(self.rounds[-1]) if len(self.rounds) else self.start - 1


def batches(stays: Iterable[Stay]) -> Mapping[str, BatchFacts]:
    """Facts by request id."""
    calls = grouped((stay.call, stay) for stay in stays)
    return {stay.key: facts for together in calls.values() for stay, facts in _facts(together)}


def stay_of(request: RequestRecord) -> Stay | None:
    """A request's stay; None if it does not record its rounds."""
    trace, facts = request.trace, request.trace.header.facts
    if "rounds" not in facts and ("row" not in facts or "round" not in facts):
        return None
    unlike = tuple((int(first), int(last)) for first, last in facts.get("unlike", ()))
    # copies: views would keep every column of the trace in memory
    lengths, drafts = trace.position.astype(np.int64), trace.n_drafted.astype(np.int64)
    if "rounds" in facts:
        row, rounds = None, np.concatenate([np.arange(first, last + 1) for first, last in facts["rounds"]])
        start = int(rounds[0])
    else:
        row, start = int(facts["row"]), int(facts["round"])
        rounds = np.arange(start, start + len(lengths))
    withdrawals = tuple(map(int, facts.get("withdrawals", ())))
    return Stay(request.request_id, str(facts.get("call")), row, start, rounds, lengths, drafts, unlike, withdrawals)


def _facts(stays: Sequence[Stay]) -> Iterable[tuple[Stay, BatchFacts]]:
    count = 1 + max(stay.end for stay in stays)
    admitted = np.bincount([stay.start for stay in stays], minlength=count)
    ended = np.bincount([max(stay.end, 0) for stay in stays], minlength=count)
    lengths, drafts = (_Extremes.of(stays, name, count) for name in ("lengths", "drafts"))
    earliest: dict[int | None, int] = {}
    for stay in stays:
        earliest[stay.row] = min(stay.end, earliest.get(stay.row, stay.end))
    for stay in stays:
        steps = stay.rounds
        yield (
            stay,
            BatchFacts(
                reused=None if stay.row is None else earliest[stay.row] < stay.start,
                joined=(admitted[steps] > 0) & (steps > stay.start),
                left=None if stay.row is None else np.isin(steps, stay.withdrawals),
                finished=(ended[steps] > 1) & (steps == stay.end),
                lengths=lengths.other_than(stay.lengths, stay.rounds),
                drafts=drafts.other_than(stay.drafts, stay.rounds),
                parameters=None if stay.row is None else _within(steps, stay.unlike),
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

    def other_than(self, values: Counts, rounds: Counts) -> Mask:
        """[S] true where some row has another value."""
        return np.asarray((self.low[rounds] != values) | (self.high[rounds] != values))


def _within(steps: Counts, spans: Sequence[tuple[int, int]]) -> Mask:
    mask = np.zeros(len(steps), np.bool_)
    for first, last in spans:
        mask |= (steps >= first) & (steps <= last)
    return mask
