"""Which situations an arm's settings ask for, and how waivers, demands and `least` change the floors."""

from dataclasses import replace

import pytest

from audit.evidence.coverage import expected
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.rule import CoverageRule
from engine.core.steady import SteadyDrafts
from engine.core.types import FinishReason, SamplingParams
from engine.record.effective import Effective, LoopOwner
from tests.audit.checks.simulator import Setup, arm, world

ALWAYS = set(expected.ANYWHERE)
TOGETHER = set(expected.TOGETHER)
STEADY = SteadyDrafts(context=64)


@pytest.fixture(scope="module")
def one():
    return arm(world(4), Setup(), 1)


def asked(one, sampling=None, **settings):
    record = replace(one, effective=Effective(**settings))
    if sampling is not None:
        (request,) = one.requests
        header = replace(request.trace.header, sampling=sampling)
        record = replace(record, requests=[replace(request, trace=replace(request.trace, header=header))])
    got = set(expected.once(record))
    assert got >= ALWAYS
    return got - ALWAYS - (set() if sampling else {"unlikely_token"})


@pytest.mark.parametrize(
    ("settings", "situations"),
    [
        ({"gamma": 1, "steady_drafts": STEADY}, set()),
        ({"gamma": 2, "steady_drafts": STEADY}, {"rejected_last"}),
        ({"gamma": 3, "steady_drafts": STEADY}, {"rejected_last", "rejected_middle", "block_border"}),
        ({"gamma": 9, "steady_drafts": replace(STEADY, most=2)}, {"rejected_last"}),
        ({"gamma": 3}, {"after_nothing_drafted"}),
        ({"gamma": 3, "rows": 2}, TOGETHER | {"mixed_drafts", "after_nothing_drafted"}),
        ({"gamma": 1, "rows": 2, "steady_drafts": STEADY}, TOGETHER),
        ({"gamma": 3, "rows": 2, "proposer_shape": "tree"}, TOGETHER),
        ({"gamma": 3, "decoder": LoopOwner.FOREIGN, "proposer": "eagle"}, set()),
        ({"gamma": 3, "decoder": LoopOwner.FOREIGN, "proposer": "ngram"}, {"after_nothing_drafted"}),
    ],
)
def test_lengths_rows_and_shapes(one, settings, situations):
    """The chains of this arm, taken for trees, have a deep node."""
    assert asked(one, **settings) == situations | ({"tree_deep"} if "proposer_shape" in settings else set())


@pytest.mark.parametrize(
    ("sampling", "situations"),
    [
        (SamplingParams(), set()),
        (SamplingParams(top_p=0.5), set()),
        (SamplingParams(temperature=0.4), set()),
        (SamplingParams(temperature=0.5), {"unlikely_token"}),
        (SamplingParams(temperature=1.0, top_k=1), set()),
        (SamplingParams(temperature=1.0, top_k=5), {"unlikely_token", "outside_truncation"}),
        (SamplingParams(temperature=0.3, min_p=0.1), {"outside_truncation"}),
        (SamplingParams(temperature=1.0, min_p=0.2), {"outside_truncation"}),
        (SamplingParams(temperature=1.0, top_p=0.4), {"outside_truncation"}),
    ],
)
def test_laws(one, sampling, situations):
    assert asked(one, sampling, steady_drafts=STEADY) == situations


@pytest.mark.parametrize(("protocol", "asks"), [("chain", True), ("tree", True), ("block", True), ("gumbel", False)])
def test_small_residuals_are_expected_of_rules_that_draw_from_one(one, protocol, asks):
    drawn = {"protocol": protocol, "steady_drafts": STEADY}
    assert ("small_residual" in asked(one, SamplingParams(temperature=1.0), **drawn)) is asks
    assert "small_residual" not in asked(one, SamplingParams(temperature=0.0), **drawn)
    assert "small_residual" not in asked(one, SamplingParams(temperature=1.0), protocol=protocol)


@pytest.mark.parametrize(
    ("sampling", "situations"),
    [
        (SamplingParams(stop_token_ids=(3,)), set(expected.ENDS)),
        (SamplingParams(stop_token_ids=(3,), ignore_eos=True), set(expected.ENDS)),
        (SamplingParams(stop=("a",)), {"stop_string_across_steps"}),
    ],
)
def test_ends(one, sampling, situations):
    assert asked(one, sampling, steady_drafts=STEADY) == situations


def test_nothing_is_drafted_behind_a_draft_of_one_token(one):
    ending = SamplingParams(stop_token_ids=(3,))
    assert asked(one, ending, gamma=1, steady_drafts=STEADY) == {"end_at_last_draft", "end_at_bonus"}


def test_a_model_s_end_tokens_count_unless_they_are_ignored(one):
    (request,) = one.requests
    header = replace(request.trace.header, eos_ids=(2,))
    ending = replace(one, requests=[replace(request, trace=replace(request.trace, header=header))])
    assert asked(ending, SamplingParams(), steady_drafts=STEADY) == set(expected.ENDS)
    assert asked(ending, SamplingParams(ignore_eos=True), steady_drafts=STEADY) == set()


@pytest.mark.parametrize(
    ("rule", "floors"),
    [
        (CoverageRule(), (1, 10)),
        (CoverageRule(least=30), (1, 30)),
        (CoverageRule(least=0), (0, 0)),
        (CoverageRule(waive=("rejected_first",)), (0, 10)),
        (CoverageRule(waive=("recovered_token",)), (0, 0)),
        (CoverageRule(least=30, demand=("rejected_first",)), (30, 30)),
        (CoverageRule(waive=("recovered_token",), demand=("rejected_first",)), (10, 0)),
        (CoverageRule(least=0, demand=("rejected_first",)), (1, 0)),
    ],
)
def test_floors(rule, floors):
    assert (rule.floor("rejected_first"), rule.floor("recovered_token")) == floors


def test_parts_are_situations_with_a_floor_of_one():
    parts = {part for listed in expected.PARTS.values() for part in listed}
    assert parts <= expected.ONCE <= set(CATALOGUE)
    # parts with parts of their own are themselves situations with a floor of one
    assert expected.ONCE & set(expected.PARTS) == {"nothing_drafted", "tool_call"}


def test_ends_of_copies_and_of_trees_promise_no_last_draft(one):
    ending = SamplingParams(stop_token_ids=(3,))
    assert "end_at_last_draft" in asked(one, ending, gamma=3, steady_drafts=STEADY)
    assert asked(one, ending, gamma=3) >= {"end_in_draft", "end_at_bonus"}
    assert "end_at_last_draft" not in asked(one, ending, gamma=3)
    assert "end_at_last_draft" not in asked(one, ending, gamma=3, steady_drafts=STEADY, proposer_shape="tree")


@pytest.mark.parametrize("steady", [STEADY, None])
def test_calls_end_with_a_step_where_drafts_are_steady(one, steady):
    (request,) = one.requests
    facts = {"tools": {"offered": [], "choice": "auto", "calls": []}}
    header = replace(request.trace.header, facts=facts)
    calling = replace(one, requests=[replace(request, trace=replace(request.trace, header=header))])
    got = asked(calling, gamma=1, steady_drafts=steady)
    assert ("tool_call" in got, "tool_call_at_step_end" in got) == (True, steady is not None)


@pytest.mark.parametrize(("reason", "asks"), [(FinishReason.LENGTH, True), (FinishReason.EOS, False)])
def test_filters_are_asked_for_the_length_limit_where_answers_reach_it(one, reason, asks):
    (request,) = one.requests
    ended = replace(one, requests=[replace(request, finish_reason=reason)])
    for side, there in (("output", asks), ("prompt", False)):
        facts = {"stream": {"filters": [{"component": "patterns", "side": side}]}}
        assert ("filter_at_length" in asked(ended, gamma=1, steady_drafts=STEADY, facts=facts)) is there


def test_recorded_waivers_of_both_ends_stand_for_each():
    rule = CoverageRule(waive=("end_at_draft_end",))
    assert (rule.floor("end_at_last_draft"), rule.floor("end_at_bonus"), rule.floor("end_in_draft")) == (0, 0, 1)
