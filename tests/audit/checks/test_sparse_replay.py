"""`replay` and `q_contract` on the sparse record: what whole rows show, and single changes."""

import dataclasses

import numpy as np
import pytest

from audit.checks.q_contract.columns import drawn_tokens, lumped_draws, lumped_fault
from audit.checks.replay.partial import replay_partial
from engine.core.types import Protocol, RecordLevel, Role, SamplingParams
from engine.record.trace import decode
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=30, seed=4, top_p=0.95)


def traces(protocol):
    made = generate(Setup(level=RecordLevel.TOPK, protocol=protocol), requests(3, SAMPLED)).values()
    return [decode(each.trace) for each in made]


def changed(trace, name, at, value):
    column = getattr(trace, name).copy()
    column[at] = value
    return dataclasses.replace(trace, **{name: column})


@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL])
def test_every_decision_is_recomputed_and_none_differs(protocol):
    for trace in traces(protocol):
        tally = replay_partial(trace)
        assert tally.decisions == tally.recomputed > 0
        assert not tally.faults


@pytest.mark.parametrize("protocol", [Protocol.TREE, Protocol.BLOCK])
def test_other_rules_are_not_recomputed(protocol):
    assert all(replay_partial(trace).recomputed == 0 for trace in traces(protocol))


def gumbel_changes(trace):
    other = (int(trace.token[5]) + 1) % trace.header.vocabulary
    recovered = int(np.flatnonzero(trace.role == Role.RECOVERED)[0])
    yield changed(trace, "token", 5, other)
    yield changed(trace, "best_id", 5, (other, int(trace.token[5])))
    yield changed(trace, "best_score", (5, 0), trace.best_score[5, 0] + 1e-3)
    yield changed(trace, "best_score", (5, 1), trace.best_score[5, 0] + 1.0)
    yield changed(trace, "row_p", 5, trace.row_p[5] * 1.01)
    yield changed(trace, "role", recovered, Role.BONUS)
    yield changed(trace, "examined_accepted", 0, 1 - trace.examined_accepted[0])
    yield changed(trace, "examined_p", 0, trace.examined_p[0] + 0.01)
    yield changed(trace, "cell_p", (5, slice(None)), np.roll(trace.cell_p[5], 1))
    yield dataclasses.replace(trace, header=dataclasses.replace(trace.header, stream=1))


@pytest.mark.medium
def test_each_change_of_a_gumbel_record_is_a_fault():
    for at, broken in enumerate(gumbel_changes(traces(Protocol.GUMBEL)[0])):
        assert replay_partial(broken).faults, at


def faults(trace):
    return [message for message in map(lumped_fault, lumped_draws(trace, drawn_tokens(trace).strange)) if message]


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL, Protocol.TREE, Protocol.BLOCK])
def test_honest_draws_keep_the_contract(protocol):
    for trace in traces(protocol):
        every = list(lumped_draws(trace, np.arange(len(trace.examined_node))))
        assert len(every) == drawn_tokens(trace).count > 0
        assert not any(map(lumped_fault, every))
        assert not faults(trace)


@pytest.mark.parametrize(("name", "value"), [("examined_q", 0.5), ("q_own", 0.0), ("q_sum", 1.1), ("q_below", 2.0)])
def test_each_change_of_a_draw_is_a_fault(name, value):
    assert faults(changed(traces(Protocol.CHAIN)[0], name, 0, value))


def test_a_draft_that_does_not_lead_is_a_fault():
    trace = traces(Protocol.GUMBEL)[0]
    other = (int(trace.draft_best_id[0, 0]) + 1) % trace.header.vocabulary
    assert faults(changed(trace, "draft_best_id", (0, 0), other))
    assert faults(changed(trace, "draft_best_score", (0, 0), trace.draft_best_score[0, 0] + 0.1))
