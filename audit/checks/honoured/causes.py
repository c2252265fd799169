"""Compare an engine's reported probabilities with those of its raw rows, and find the parameter that it ignored.

The comparison is under the request's parameters, and covers the emitted token of a row and the token drafted there.
Level `full` allows computing the expected probability from the row; level `topk` records it for the emitted token. Each
hypothesis turns off or replaces one of the request's parameters; the result is the first hypothesis that explains nine
tenths of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from audit.evidence.decisions import NO_NODE, DraftPlaces, deciding_row, places
from audit.evidence.records import RequestRecord
from engine.core.types import Mask, RecordLevel, Role, SamplingParams
from engine.record.columns import shape_fault
from engine.record.trace import Rows, Trace
from engine.sampling.transforms import transform

LOOKED_AT: Final = 64
"""Number of evenly spaced rows to examine; a cause that explains these explains the rest."""
EXPLAINED: Final = 0.9
CLOSE: Final = 0.002
TOO_SHORT: Final = "as if the answer were still shorter than min_tokens"
DEGENERATE: Final = 0.98
"""If this share of probabilities is 0 or 1, the rows count as argmax."""

OFF: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "bad_words": (),
    "min_tokens": 0,
    "structured": None,
}
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "truncation": ("top_k", "top_p", "min_p"),
    "penalty": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "mask": ("logit_bias", "bad_words", "min_tokens", "structured"),
}


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


def compared_rows(request: RequestRecord, *, drafted: bool, tolerance: float) -> tuple[int, list[TokenComparison]]:
    """How many probabilities of a request's rows were compared, of drafted places or the others, and those that differ.

    A malformed record or one without rows has none.
    """
    trace = request.trace
    if trace.header.level not in (RecordLevel.TOPK, RecordLevel.FULL) or shape_fault(trace) is not None:
        return 0, []
    result = places(trace)
    of_draft = np.isin(trace.role, [Role.ACCEPTED, Role.RECOVERED])
    every = [comparison for at in np.flatnonzero(of_draft == drafted) for comparison in _at(request, result, int(at))]
    return len(every), [item for item in every if abs(item.said - item.asked) > tolerance]


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


def hypotheses(sampling: SamplingParams) -> dict[str, SamplingParams]:
    """Parameters that the engine may have used instead, in words: the request's with one active parameter left out, or
    with min_tokens never reached.
    """
    on = active(sampling)
    result = {f"as if {key} were not set": without(sampling, (key,)) for key in on}
    if sampling.min_tokens:
        result[TOO_SHORT] = replace(sampling, min_tokens=sampling.max_new_tokens)
    for name, keys in GROUPS.items():
        if len(set(keys) & set(on)) > 1:
            result[f"as if no {name} were set"] = without(sampling, keys)
    bare = SamplingParams(temperature=1.0, max_new_tokens=sampling.max_new_tokens, seed=sampling.seed)
    return {**result, "as if no parameter were set": bare}


def active(sampling: SamplingParams) -> tuple[str, ...]:
    """The names of the parameters that are on."""
    return tuple(key for key, value in OFF.items() if getattr(sampling, key) != value)


def without(sampling: SamplingParams, keys: Sequence[str]) -> SamplingParams:
    """The parameters with some of them off."""
    return replace(sampling, **{key: OFF[key] for key in keys})


def cause(wrong: Sequence[TokenComparison]) -> str:
    """The hypothesis that explains the rows, in words."""
    seen = [wrong[i] for i in np.unique(np.linspace(0, len(wrong) - 1, LOOKED_AT).astype(int))]
    if any(item.row is None for item in seen):
        return "the rows are not recorded; record: full tells which parameter"
    for name, sampling in hypotheses(seen[0].sampling).items():
        if np.mean([_explains(item, sampling) for item in seen]) >= EXPLAINED:
            return name
    if np.mean([min(item.said, 1.0 - item.said) < CLOSE for item in seen]) >= DEGENERATE:
        return "all mass on one token, as at a temperature near 0"
    return "no parameter that was left out explains them: the values in effect are none that the request has"


def _explains(comparison: TokenComparison, sampling: SamplingParams) -> bool:
    value = comparison.under(sampling)
    return value is not None and abs(value - comparison.said) <= CLOSE
