from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.decisions import decisions, unreadable
from engine.core.types import Protocol, RecordLevel, Role
from engine.record.columns import shape_fault
from tests.audit.checks.simulator import Laws, Setup, arm, changed, world


@pytest.fixture(scope="module")
def target():
    return world(5)


def test_p_and_q_are_those_of_the_contexts(target):
    setup = Setup()
    request = arm(target, setup, 1).requests[0]
    made, laws = decisions(request), Laws.of(target, setup.sampling)
    context = [2, *request.tokens[:-1]]
    assert made.p == pytest.approx(laws.p[context])
    assert made.q[made.known] == pytest.approx(laws.q[np.array(context)[made.known]])


def test_q_is_known_exactly_where_a_token_was_drafted(target):
    made = decisions(arm(target, Setup(), 1).requests[0])
    assert np.array_equal(made.known, made.candidates > 0)
    assert np.array_equal(made.candidates == 0, made.role == Role.BONUS)
    assert made.depth.max() == 4


def test_a_deterministic_draft_is_a_one_hot_row(target):
    made = decisions(arm(target, Setup(draft="one_hot"), 1).requests[0])
    known = made.known
    assert np.array_equal(made.q[known].argmax(axis=1), made.drafted[known])
    assert made.q[known].sum(axis=1) == pytest.approx(1.0)


def test_without_drafts_nothing_is_known(target):
    made = decisions(arm(target, Setup(Protocol.GUMBEL, "none"), 1).requests[0])
    assert not made.known.any()
    assert set(made.role) == {Role.PLAIN}


def test_unreadable_arms_say_why(target):
    clean = arm(target, Setup(), 2)
    assert unreadable(clean) is None
    assert "has no requests" in unreadable(replace(clean, requests=()))
    assert "level scalars" in unreadable(arm(target, Setup(level=RecordLevel.SCALARS), 1))
    trace = clean.requests[0].trace
    assert "contradicts itself" in unreadable(changed(clean, 0, token=trace.token[:-1]))
    assert "NaN" in unreadable(changed(clean, 0, logits=np.full_like(trace.logits, np.nan)))


@pytest.mark.parametrize("level", list(RecordLevel))
def test_clean_traces_are_in_shape_at_every_level(target, level):
    assert shape_fault(arm(target, Setup(level=level), 1).requests[0].trace) is None
