"""Acceptance figures against counts made by hand and by a plain loop over the steps."""

import math
from dataclasses import replace

import numpy as np
import pytest

from engine.core.types import Protocol, RecordLevel, Role, SamplingParams
from engine.record.metrics import acceptance, accepted_by_step
from engine.record.trace import steps_of
from tests.engine.build import Setup, generate, requests, traces


def made(eos_ids=(), **changes):
    sampling = SamplingParams(temperature=0.9, max_new_tokens=25, seed=1)
    setup = Setup(gamma=4, eos_ids=eos_ids, **changes)
    return list(traces(generate(setup, requests(6, sampling))).values())


def by_hand(drafted, accepted, roles):
    """A trace with the given steps; every accepted token is emitted and one more follows."""
    template = made()[0]
    emitted = [a + 1 for a in accepted]
    return replace(
        template,
        position=np.cumsum([2, *emitted[:-1]]).astype(np.int32),
        n_drafted=np.array(drafted, dtype=np.int16),
        n_emitted=np.array(emitted, dtype=np.int16),
        role=np.array(roles, dtype=np.uint8),
        token=np.zeros(len(roles), dtype=np.uint32),
    )


A, R, B, P = Role.ACCEPTED, Role.RECOVERED, Role.BONUS, Role.PLAIN
EXAMPLE = ([3, 3, 0, 1, 2], [3, 1, 0, 0, 2], [A, A, A, B, A, R, P, R, A, A, B])


def by_position(figures):
    """The unconditional acceptance of the i-th drafted token."""
    return tuple(kept / figures.drafting_steps for kept in figures.kept)


def test_an_example_by_hand():
    trace = by_hand(*EXAMPLE)
    found = acceptance([trace])
    assert accepted_by_step(trace).tolist() == [3, 1, 0, 0, 2]
    assert (found.steps, found.drafted, found.accepted, found.emitted, found.drafting_steps) == (5, 9, 6, 11, 4)
    assert found.kept == (3, 2, 1)
    assert found.histogram == (2, 1, 1, 1)
    assert found.draft_acceptance_rate == 6 / 9
    assert found.tokens_per_forward == 11 / 5
    assert by_position(found) == (3 / 4, 2 / 4, 1 / 4)
    assert found.acceptance_length == 1 + 6 / 4


def test_a_draft_longer_than_an_int16_sum_does_not_wrap():
    """The counts are stored in 16 bits; their sum must not be."""
    steps = 9000
    trace = by_hand([4] * steps, [4] * steps, [A, A, A, A, B] * steps)
    assert acceptance([trace]).drafted == 4 * steps
    assert acceptance([trace]).accepted == 4 * steps


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("eos_ids", [(), (2,)])
def test_against_a_loop_over_the_steps(protocol, eos_ids):
    found_traces = made(eos_ids, protocol=protocol, rows=3)
    found = acceptance(found_traces)
    drafting, kept, lengths = 0, [0] * 4, []
    for trace in found_traces:
        for step in steps_of(trace):
            drafting += step.nodes.stop > step.nodes.start
            accepted = sum(1 for role in trace.role[step.emitted] if role == Role.ACCEPTED)
            lengths.append(accepted)
            for i in range(4):
                kept[i] += accepted > i
    assert found.drafting_steps == drafting
    assert found.kept == tuple(kept)
    assert found.histogram == tuple(lengths.count(i) for i in range(5))
    assert sum(found.kept) == found.accepted == sum(trace.n_accepted for trace in found_traces)
    assert sum(found.histogram) == found.steps
    assert by_position(found) == tuple(count / drafting for count in kept)
    assert found.acceptance_length == pytest.approx(1 + sum(by_position(found)))


@pytest.mark.medium
def test_metrics_need_the_lowest_level_only():
    low, full = (acceptance(made(level=level)) for level in (RecordLevel.TOKENS, RecordLevel.FULL))
    assert low == full


def test_without_drafts_there_is_no_rate():
    found = acceptance(made(proposer=None))
    assert math.isnan(found.draft_acceptance_rate)
    assert math.isnan(found.acceptance_length)
    assert found.tokens_per_forward == 1.0
    assert (by_position(found), found.histogram) == ((), (found.steps,))
    empty = acceptance([])
    assert empty.steps == 0
    assert math.isnan(empty.tokens_per_forward)
