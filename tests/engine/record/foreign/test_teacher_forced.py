"""The record of given tokens: their rows, one token per step, and nothing that was drawn."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, Role, SamplingParams
from engine.record.foreign.teacher_forced import GivenRow, record_given
from engine.record.trace import TraceHeader, decode

ROWS = np.arange(12.0, dtype=np.float32).reshape(3, 4)
REQUEST = Request("r", (1, 2), SamplingParams(temperature=1.0), 0)
HEADER = TraceHeader(
    *("r", RecordLevel.FULL, Protocol.GUMBEL, True, "given", 4, 0),
    *(REQUEST.sampling, (), FinishReason.LENGTH, REQUEST.prompt),
)


def test_each_token_is_a_step_with_its_row():
    asked = []

    def rows_on(history, start):
        asked.append((history, start))
        return (GivenRow(row, p=row[0] / 16) for row in ROWS)

    made = record_given(REQUEST, (3, 0, 2), HEADER, str, rows_on)
    trace = decode(made.trace)
    assert asked == [([1, 2, 3, 0, 2], 2)]
    assert (made.tokens, made.text, made.finish_reason) == ((3, 0, 2), "(3, 0, 2)", FinishReason.LENGTH)
    assert trace.tokens == (3, 0, 2)
    assert trace.position.tolist() == [2, 3, 4]
    assert set(trace.role.tolist()) == {int(Role.PLAIN)}
    assert trace.p.tolist() == [0.0, 0.25, 0.5]
    np.testing.assert_array_equal(trace.logits, ROWS)
    assert np.isnan(trace.uniform).all()


def test_a_row_without_transforms_has_no_p():
    made = record_given(REQUEST, (3, 0, 2), HEADER, str, lambda *_: map(GivenRow, ROWS))
    assert np.isnan(decode(made.trace).p).all()


def test_no_tokens_are_refused_before_a_row_is_computed():
    with pytest.raises(InvalidRequest, match="request r: there are no tokens to read"):
        record_given(REQUEST, (), HEADER, str, lambda *_: pytest.fail("computed rows"))
