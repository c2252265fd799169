"""Drafting again in numerics that round: every difference has its lead, and nothing behind a difference is lost."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.draft_anchor import DraftNoise, Likeness, compare
from audit.evidence.records import RequestRecord
from engine.core.types import DraftRule, FinishReason, Protocol, SamplingParams
from engine.record.trace import PARTED, decode, steps_of
from tests.engine import build
from tests.engine.build import Setup, generate
from tests.support.drafting_again import again, along
from tests.support.proposer_cases import CASES, PAIRS, SHAPED, made, ragged, sampling_for, setup_of
from tests.support.tiers import daily, slow_unless

NOISE = 0.02
"""Standard deviation of logits between two passes."""
ROUNDS = DraftNoise(0.05)
ALONE = [pair for pair in PAIRS if made(pair[0], DraftRule.INDEPENDENT).facts.state != "shared"]
MEASURED = [pair for pair in ALONE if made(pair[0], DraftRule.INDEPENDENT).facts.measured]


@pytest.fixture
def rounding(monkeypatch):
    """Drafts that draw from logits with noise. The list has the number of the pass, and of how many parts of 1 the
    logits are multiples before, so that many tie.
    """
    number, exact = [0, 0], build.draft_script

    def rough(setup, draft=0):
        script = exact(setup, draft)

        def logits(prefix):
            seed = hash((number[0], draft, prefix)) % 2**32
            logits = np.round(script(prefix) * number[1]) / number[1] if number[1] else script(prefix)
            return logits + np.random.default_rng(seed).normal(0, NOISE, setup.vocabulary)

        return logits

    monkeypatch.setattr(build, "draft_script", rough)
    return number


def record(trace):
    return RequestRecord("r", "r", 0, "d", trace, trace.tokens, "", FinishReason.LENGTH, 0, True)


def compared(setup, wanted, rounding):
    """Every step of requests that were decoded in a batch, against the drafts made again in a pass of other bits."""
    steps = []
    for generation in generate(replace(setup, rows=3), wanted).values():
        trace = decode(generation.trace)
        rounding[0] += 1
        made_again = along(setup, generation.request, trace)
        rounding[0] -= 1
        steps += compare(record(trace), record(made_again), ROUNDS).steps
    return steps


@pytest.mark.medium
@pytest.mark.parametrize(("case", "protocol"), slow_unless(MEASURED, daily(MEASURED)))
def test_rounding_is_never_a_fault_and_never_ends_the_comparison(case, protocol, rounding):
    setup = setup_of(case, protocol=protocol, gamma=4, eos_ids=(5,))
    steps = compared(setup, ragged(8, sampling_for(protocol, SHAPED)), rounding)
    assert len(steps) > 20
    assert [step.message for step in steps if step.likeness in (Likeness.WRONG, Likeness.UNLIKE)] == []


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL])
@pytest.mark.parametrize("options", [{}, {"stop_below": 0.3}, {"token_cost": 0.1, "stop_below": 0.25}])
def test_ties_and_borders_come_out_otherwise_and_are_rounding(protocol, options, rounding):
    rounding[1] = 4
    setup = Setup(options=options, protocol=protocol, gamma=4)
    sampling = sampling_for(protocol, SamplingParams(temperature=0.8, max_new_tokens=40, seed=3))
    steps = compared(setup, build.requests(12, sampling), rounding)
    kinds = [step.likeness for step in steps]
    assert set(kinds) == {Likeness.SAME, Likeness.ROUNDED}
    assert kinds.count(Likeness.ROUNDED) > 3


def one(case="draft_model", protocol=Protocol.CHAIN, sampling=None):
    setup = setup_of(case, protocol=protocol, gamma=4)
    sampling = sampling_for(protocol, sampling or SamplingParams(temperature=0.8, max_new_tokens=40, seed=3))
    (generation,) = generate(setup, build.requests(1, sampling)).values()
    return setup, generation.request, decode(generation.trace)


def node_of(trace, step, node):
    return int(trace.n_drafted[:step].sum()) + node


def rejected(trace):
    """Steps that drafted four tokens and did not keep the last."""
    kept = {view.index: int(trace.examined_accepted[view.examined].sum()) for view in steps_of(trace)}
    return [view.index for view in steps_of(trace) if len(view.tree) == 4 and kept[view.index] < 4]


def with_tokens(trace, changes):
    tokens = trace.node_token.copy()
    for place, token in changes.items():
        tokens[place] = token
    return replace(trace, node_token=tokens)


@pytest.mark.parametrize("case", ["draft_model", "draft_model-token_cost"])
@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL])
def test_a_draft_that_parts_in_one_step_hides_no_later_step_and_no_later_node(case, protocol):
    setup, request, trace = one(case, protocol)
    first, *_, last = rejected(trace)
    places = [node_of(trace, first, 3), node_of(trace, last, 3)]
    changed = with_tokens(trace, {place: (int(trace.node_token[place]) + 1) % 8 for place in places})
    theirs = along(setup, request, changed)
    assert [item[:2] for item in theirs.header.facts[PARTED]] == [[first, 3], [last, 3]]
    np.testing.assert_array_equal(theirs.node_token[places], trace.node_token[places])
    steps = compare(record(changed), record(theirs), DraftNoise(0.0)).steps
    assert [step.step for step in steps if step.likeness is Likeness.WRONG] == [first, last]
    assert len(steps) >= trace.steps - 1


@pytest.mark.medium
def test_one_stale_step_is_wrong_after_an_earlier_one_that_rounding_explains():
    """The first choice between two tokens that are nearly equal, the second far from its border."""
    setup, request, trace = one(protocol=Protocol.GREEDY)
    leads = {}
    for step in rejected(trace):
        for other in range(1, 8):
            token = (int(trace.node_token[node_of(trace, step, 3)]) + other) % 8
            changed = with_tokens(trace, {node_of(trace, step, 3): token})
            ((_, _, lead),) = along(setup, request, changed).header.facts[PARTED]
            leads[step, token] = lead
    early = min(leads, key=lambda key: (leads[key], key))
    late = max((key for key in leads if key[0] > early[0]), key=leads.__getitem__)
    assert leads[early] < leads[late]
    changed = with_tokens(trace, {node_of(trace, step, 3): token for step, token in (early, late)})
    noise = DraftNoise((leads[early] + leads[late]) / 2)
    steps = compare(record(changed), record(along(setup, request, changed)), noise).steps
    others = {step.step: step.likeness for step in steps if step.likeness is not Likeness.SAME}
    assert others == {early[0]: Likeness.ROUNDED, late[0]: Likeness.WRONG}


@pytest.mark.medium
def test_a_lead_is_the_distance_of_the_number_from_the_tokens_part_of_the_law():
    setup, request, trace = one()
    step = rejected(trace)[0]
    place = node_of(trace, step, 3)
    theirs = along(setup, request, trace)
    row, number = theirs.q_rows[place], trace.node_uniform[place]
    edges = np.concatenate([[0.0], np.cumsum(row)])
    for token in range(8):
        changed = with_tokens(trace, {place: token})
        parted = along(setup, request, changed).header.facts.get(PARTED, [])
        if token == trace.node_token[place]:
            assert parted == []
        elif row[token] == 0:
            assert parted == [[step, 3, None]]
        else:
            distance = max(edges[token] - number, number - edges[token + 1])
            assert parted == [[step, 3, pytest.approx(distance)]]


@pytest.mark.parametrize("case", sorted({case for case, _ in ALONE} - {case for case, _ in MEASURED}))
def test_a_proposer_whose_leads_are_unknown_is_compared_up_to_its_first_difference(case):
    protocol = next(protocol for other, protocol in ALONE if other == case)
    setup, request, trace = one(case, protocol)
    step = next(view.index for view in steps_of(trace) if len(view.tree) > trace.examined_accepted[view.examined].sum())
    place = node_of(trace, step, int(trace.n_drafted[step]) - 1)
    changed = with_tokens(trace, {place: (int(trace.node_token[place]) + 1) % 8})
    theirs = again(build.make_loop(setup), request, changed)
    steps = compare(record(changed), record(theirs), replace(ROUNDS, measured=False)).steps
    assert (steps[-1].step, steps[-1].likeness) == (step, Likeness.UNLIKE)
    assert compare(record(changed), record(theirs), DraftNoise(0.0, measured=False)).differs
    assert case in CASES
