"""Compare an engine's reported probabilities with those of its raw rows under the request's parameters.

The comparison covers the emitted token of a row and the token drafted there. Level `full` allows computing the expected
probability from the row; level `topk` records it for the emitted token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audit.evidence.decisions import NO_NODE, DraftPlaces, deciding_row, places
from audit.evidence.records import RequestRecord
from engine.core.types import Mask, RecordLevel, Role, SamplingParams
from engine.record.columns import shape_fault
from engine.record.trace import Rows, Trace
from engine.sampling.transforms import transform


@dataclass(frozen=True, slots=True)
class TokenComparison:
    """One token of one row: its reported probability (`said`) and the one under the requested parameters (`asked`).

    `row` [V] is the raw row with the `history` before it, None if the record lacks it.
    """

    request: str
    step: int
    token: int
    said: float
    asked: float
    sampling: SamplingParams
    row: Rows | None = None
    history: tuple[int, ...] = ()
    prompt_length: int = 0
    eos_ids: tuple[int, ...] = ()
    allowed: Mask | None = None
    """[V] the grammar's mask on the row."""

    def under(self, sampling: SamplingParams) -> float | None:
        """The token's probability under other parameters; None if the row is not recorded."""
        if self.row is None:
            return None
        row = transform(self.row, list(self.history), self.prompt_length, sampling, self.eos_ids, self.allowed)
        return float(row.p[self.token])

    def message(self, kind: str) -> str:
        """The difference in words."""
        return f"{kind} row: the engine's p of token {self.token} is {self.said:.4g}, the request's {self.asked:.4g}"


@dataclass(frozen=True, slots=True)
class RequestRows:
    """One request's rows of one kind: how many probabilities were compared, and those that differ."""

    n: int
    wrong: tuple[TokenComparison, ...]


def compared_rows(request: RequestRecord, *, drafted: bool, tolerance: float) -> RequestRows:
    """Compare the rows of drafted places, or the others; a malformed record or one without rows has none."""
    trace = request.trace
    if trace.header.level not in (RecordLevel.TOPK, RecordLevel.FULL) or shape_fault(trace) is not None:
        return RequestRows(0, ())
    result = places(trace)
    of_draft = np.isin(trace.role, [Role.ACCEPTED, Role.RECOVERED])
    every = [comparison for at in np.flatnonzero(of_draft == drafted) for comparison in _at(request, result, int(at))]
    return RequestRows(len(every), tuple(item for item in every if abs(item.said - item.asked) > tolerance))


def _at(request: RequestRecord, result: DraftPlaces, at: int) -> Iterator[TokenComparison]:
    """Compare the emitted token of a row, and the drafted token if it differs."""
    trace = request.trace
    if trace.header.level is RecordLevel.TOPK:
        if len(trace.row_p) and not np.isnan(trace.p[at]):
            yield _lumped(request, result, at)
        return
    reported = tuple(_reported(trace, result, at))
    if not reported:
        return
    header, p = trace.header, deciding_row(trace, at).p
    history, allowed = (*header.prompt, *trace.token[:at].tolist()), trace.allowed(at)
    for token, said in reported:
        yield TokenComparison(
            request=request.request_id,
            step=int(result.step[at]),
            token=token,
            said=said,
            asked=float(p[token]),
            sampling=header.sampling,
            row=trace.logits[at],
            history=history,
            prompt_length=len(header.prompt),
            eos_ids=header.eos_ids,
            allowed=allowed,
        )


def _reported(trace: Trace, result: DraftPlaces, at: int) -> Iterator[tuple[int, float]]:
    """Tokens of a row with the probabilities that the engine reported."""
    emitted, node = int(trace.token[at]), int(result.examined[at])
    if not np.isnan(trace.p[at]):
        yield emitted, float(trace.p[at])
    token = int(result.drafted[at])
    if node != NO_NODE and token not in (NO_NODE, emitted) and not np.isnan(trace.examined_p[node]):
        yield token, float(trace.examined_p[node])


def _lumped(request: RequestRecord, result: DraftPlaces, at: int) -> TokenComparison:
    trace = request.trace
    return TokenComparison(
        request=request.request_id,
        step=int(result.step[at]),
        token=int(trace.token[at]),
        said=float(trace.p[at]),
        asked=float(trace.row_p[at]),
        sampling=trace.header.sampling,
    )
