"""Drafting again along a record: a sound proposer repeats its drafts, and no record makes the pass fail."""

from dataclasses import replace

import numpy as np
import pytest

from engine.core.types import DraftRule, Protocol
from engine.decode.redrafting import recorded_steps
from engine.record.columns import shape_fault
from engine.record.trace import PARTED, decode, steps_of
from tests.engine.build import generate, make_loop, spell
from tests.support.drafting_again import again, along, redrafter, require_the_same_drafts
from tests.support.proposer_cases import PAIRS, SHAPED, made, protocols, ragged, sampling_for, setup_of
from tests.support.tiers import daily, slow_unless


def shared(case):
    return made(case, DraftRule.INDEPENDENT).facts.state == "shared"


OWN_STATE = [pair for pair in PAIRS if not shared(pair[0])]


@pytest.mark.medium
@pytest.mark.parametrize(("case", "protocol"), slow_unless(OWN_STATE, daily(OWN_STATE)))
def test_a_sound_proposer_alone_repeats_the_drafts_that_it_made_in_a_batch(case, protocol):
    setup = setup_of(case, protocol=protocol, rows=3, gamma=4, eos_ids=(5,))
    drafted = 0
    for generation in generate(setup, ragged(8, sampling_for(protocol, SHAPED))).values():
        trace = decode(generation.trace)
        made_again = along(setup, generation.request, trace)
        require_the_same_drafts(trace, made_again)
        assert PARTED not in made_again.header.facts
        drafted += len(trace.node_token)
    assert drafted > 10


def one(case="draft_model", protocol=Protocol.CHAIN):
    setup = setup_of(case, protocol=protocol, gamma=4)
    (generation,) = generate(setup, ragged(4, sampling_for(protocol))[3:]).values()
    return setup, generation.request, decode(generation.trace)


def test_a_draft_of_the_record_that_the_proposer_would_not_make_is_made_anew_and_the_record_is_followed():
    setup, request, trace = one()
    step = next(i for i, view in enumerate(steps_of(trace)) if len(trace.node_token[view.nodes]) == 4)
    last = int(np.sum(trace.n_drafted[: step + 1])) - 1
    changed = trace.node_token.copy()
    changed[last] = (changed[last] + 1) % 8
    theirs = again(make_loop(setup), request, replace(trace, node_token=changed))
    assert theirs.node_token[last] == trace.node_token[last] != changed[last]
    assert theirs.tokens == trace.tokens
    assert spell(theirs.tokens) == redrafter(make_loop(setup)).run(request, recorded_steps(trace)).text


@pytest.mark.parametrize("protocol", list(protocols("draft_model")))
def test_the_drafts_made_again_are_a_whole_record_under_every_rule(protocol):
    setup, request, trace = one(protocol=protocol)
    theirs = again(make_loop(setup), request, trace)
    assert shape_fault(theirs) is None
    assert theirs.tokens == trace.tokens
    assert (trace.header.protocol is Protocol.BLOCK) == bool(len(trace.spare_logits))


@pytest.mark.parametrize(
    "damage",
    [
        lambda trace: {"examined_node": trace.examined_node + 9},
        lambda trace: {"node_parent": np.arange(len(trace.node_parent), dtype=np.int16)},
        lambda trace: {"row": trace.row + 99},
        lambda trace: {"token": (trace.token + 1) % 8},
    ],
    ids=["nodes that do not exist", "parents after their children", "rows that do not exist", "other tokens accepted"],
)
def test_a_record_that_contradicts_itself_is_followed_up_to_there(damage):
    setup, request, trace = one()
    whole = recorded_steps(trace)
    broken = replace(trace, **damage(trace))
    steps = recorded_steps(broken)
    assert len(steps) < len(whole) == trace.steps
    made_again = redrafter(make_loop(setup)).run(request, steps)
    assert made_again is None if not steps else decode(made_again.trace).steps == len(steps)
