"""Records of another engine's steps: roles, cuts, rows; and that our checks read them as our own."""

import numpy as np
import pytest

from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Request, Role, SamplingParams
from engine.record.columns import shape_fault
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, failed_trace, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep
from engine.record.trace import decode

V = 8
SAMPLING = SamplingParams(temperature=0.7, frequency_penalty=0.5, max_new_tokens=8)
REQUEST = Request("r", (1, 2), SAMPLING, 7)


def rows(count):
    return np.random.default_rng(count).normal(size=(count, V)).astype(np.float32)


def trace_of(*steps, level=RecordLevel.FULL, facts=None, logprob=()):
    what = ForeignEngine(V, (0,), Protocol.CHAIN, "ngram", level)
    return decode(
        observed_trace(header_of(REQUEST, what, FinishReason.LENGTH, facts or {}), ForeignRecord(steps, logprob))
    )


def full(drafted, emitted, accepted):
    return ForeignStep(drafted, emitted, accepted, QKind.ONE_HOT if drafted else QKind.NONE, None, rows(len(emitted)))


@pytest.mark.parametrize(
    ("step", "roles", "accepted"),
    [
        (full((), (5,), 0), [Role.PLAIN], []),
        (full((3, 4), (3, 4, 6), 2), [Role.ACCEPTED, Role.ACCEPTED, Role.BONUS], [1, 1]),
        (full((3, 4), (3, 6), 1), [Role.ACCEPTED, Role.RECOVERED], [1, 0]),
        (full((3, 4), (6,), 0), [Role.RECOVERED], [0]),
        (full((3, 4, 5), (3,), 3), [Role.ACCEPTED], [1]),
        (full((3, 4, 5), (3,), 1), [Role.ACCEPTED], [1]),
    ],
    ids=["plain", "bonus", "recovered", "refused", "cut", "cut at the refusal"],
)
def test_roles_follow_from_counts(step, roles, accepted):
    trace = trace_of(step)
    assert list(trace.role) == roles
    assert list(trace.examined_accepted) == accepted
    assert shape_fault(trace) is None


def test_rows_are_kept_and_scored_by_the_parameters_that_were_asked_for():
    first, second = full((3,), (3, 5), 1), full((), (5,), 0)
    trace = trace_of(first, second)
    assert np.array_equal(trace.logits, np.concatenate([first.logits, second.logits]))
    assert list(trace.position) == [2, 4]
    penalised = np.sort(second.logits[0] - 0.5 * np.bincount([3, 5], minlength=V))
    assert trace.margin[2] == pytest.approx(penalised[-1] - penalised[-2], abs=1e-6)


def test_a_step_without_rows_makes_it_a_record_of_tokens():
    trace = trace_of(full((3,), (3, 5), 1), ForeignStep((), (6,)), logprob=(-0.1, -0.2, -0.3))
    assert trace.header.level is RecordLevel.TOKENS
    assert list(trace.logprob) == [-0.1, -0.2, -0.3]
    assert len(trace.logits) == 0


def test_facts_are_in_the_header_and_no_facts_leave_no_trace():
    assert trace_of(full((), (5,), 0), facts={"level": 1, "why": "moved"}).header.facts == {"level": 1, "why": "moved"}
    what = ForeignEngine(V, (0,), Protocol.CHAIN, "ngram", RecordLevel.TOKENS)
    answer = ForeignRecord((ForeignStep((), (5,)),))
    quiet, told = (
        observed_trace(header_of(REQUEST, what, FinishReason.LENGTH, facts), answer) for facts in ({}, {"a": 1})
    )
    assert quiet != told
    assert decode(quiet).header.facts == {}


def test_a_failed_request_has_a_reason_and_nothing_else():
    what = ForeignEngine(V, (0,), Protocol.CHAIN, "ngram", RecordLevel.FULL)
    facts = {"error": {"kind": "timeout", "message": "no answer in 10 s"}}
    trace = decode(failed_trace(header_of(REQUEST, what, FinishReason.LENGTH, facts)))
    assert trace.header.finish_reason is FinishReason.ERROR
    assert trace.header.facts == facts
    assert (trace.steps, trace.tokens) == (0, ())
