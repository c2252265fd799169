"""The record of given tokens, as that of a plain generation which emitted them: one token per step, nothing drafted.

For passes that compute the target's rows on a text that another arm emitted. Random numbers are NaN, because nothing
was drawn; whether the tokens follow from the rows is the checks' question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.core import types
from engine.core.errors import InvalidRequest
from engine.record.recorder import Recorder
from engine.record.rows.reduction import NAN
from engine.record.trace import Rows, TraceHeader
from engine.sampling.stopping import Decode


@dataclass(frozen=True, slots=True)
class GivenRow:
    """[V] the logits that decide one given token, and what the transforms made of them."""

    logits: Rows
    p: float = NAN
    """p of the token; NaN if no transform ran."""
    scores: types.Floats | None = None
    """[V] scores; None where they are the logits, or no transform ran."""
    allowed: types.Mask | None = None
    """[V] the grammar's mask; None without a grammar, or if no transform ran."""


RowsOn = Callable[[Sequence[int], int], Iterable[GivenRow]]
"""The rows of a text's tokens from an index >= 1 on."""


def record_given(
    request: types.Request, tokens: Sequence[int], header: TraceHeader, text: Decode, rows_on: RowsOn
) -> types.Generation:
    """The generation that would have emitted `tokens`, with the rows on them. Raises InvalidRequest: no tokens."""
    if not tokens:
        raise InvalidRequest(f"request {request.id}: there are no tokens to read")
    history, start = [*request.prompt, *tokens], len(request.prompt)
    recorder = Recorder(header)
    for index, row in enumerate(rows_on(history, start)):
        outcome = types.StepOutcome((types.Emitted(history[start + index], types.Role.PLAIN, 0, row.p),))
        scores = None if row.scores is None else row.scores[None]
        logits = np.array(row.logits[None])  # a copy: a view would keep the whole block until the recorder reduces it
        allowed = None if row.allowed is None else row.allowed[None]
        recorder.step(
            types.StepRecord(index, start + index, types.Proposal(), outcome, logits, scores, allowed=allowed)
        )
    trace = recorder.finish(types.FinishReason.LENGTH)
    return types.Generation(request, tuple(tokens), types.FinishReason.LENGTH, trace, text(tokens))
