"""Counts of situations: recounted by plain loops, for every proposer and rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.count import count, every_token, no_token
from audit.evidence.records import ArmKind, ArmRecord, LazyRequests, Level, RequestRecord
from engine import faults
from engine.core.types import Protocol, Request, SamplingParams
from engine.record.effective import Effective
from engine.record.trace import decode, encode, lazy_trace
from tests.audit.checks.simulator import record
from tests.audit.checks.streamed_arms import evidence
from tests.audit.evidence.coverage.by_hand import counted
from tests.engine.build import Setup, generate, make_loop, requests, traces
from tests.engine.constraints import arms as masked
from tests.engine.faults.arms import arm as scripted_arm
from tests.engine.faults.arms import arm_record
from tests.engine.faults.arms import generate as generate_scenario
from tests.support.proposer_cases import PAIRS, made, ragged, setup_of
from tests.support.schedules import Schedule
from tests.support.tiers import first_rejection, slow_unless

GAMMA = 4
DAILY = ("draft_model", "ngram", "online", "specinfer", "suffix-tree")
"""Cases of the unit tier: drawn drafts, copies, a draft that learns, trees of either."""
SAMPLINGS = (
    SamplingParams(temperature=0.9, top_k=6, repetition_penalty=1.2, min_tokens=4, stop_token_ids=(6,)),
    SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.2, bad_words=((3,), (1, 2)), min_tokens=2),
    SamplingParams(temperature=1.0, min_p=0.05, frequency_penalty=0.1, stop=("ga", "d")),
    SamplingParams(temperature=0.7, bad_words=((1, 2), (4, 5, 6)), repetition_penalty=0.9),
)
UNREACHED = {
    "long_prompt",
    "context_medium",
    "context_long",
    "shared_prefix",
    "later_turn",
    "tree_deep",
    "mixed_parameters",
    "filter",
    "preempted",
    "cancelled_neighbour",
    "filter_at_length",
}

UNRECORDED = {"later_turn", "mixed_parameters", "filter", "preempted", "cancelled_neighbour", "filter_at_length"}
"""Of other requests, of arms with a stream, and of engines that preempt."""


def arm_of(setup: Setup, wanted: list[Request], shape: str) -> ArmRecord:
    listed = list(traces(generate(setup, wanted)).values())
    facts = {"proposer": setup.proposer, "proposer_shape": shape, "gamma": GAMMA, "rows": setup.rows}
    effective = Effective.from_json(facts)
    return ArmRecord("a", ArmKind.CANDIDATE, Level.L4, effective, tuple(record(trace) for trace in listed))


def greedy_where_needed(protocol: Protocol, sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, temperature=0.0) if protocol is Protocol.GREEDY else sampling


def both_counts(kind: str, protocol: Protocol, samplings=SAMPLINGS) -> Counter[str]:
    """Compares the two counts at every sampling; returns their sum."""
    seen: Counter[str] = Counter()
    shape = made(kind, "independent").facts.shape
    for sampling in samplings:
        setup = setup_of(kind, protocol=protocol, gamma=GAMMA, rows=3, eos_ids=(7,))
        arm = arm_of(setup, ragged(7, greedy_where_needed(protocol, sampling)), shape)
        coverage = count(arm, {"all": every_token, "none": no_token})
        by_hand = counted([each.trace for each in arm.requests], GAMMA, tree=shape == "tree")
        recorded = {name: occurred for name, occurred in coverage.occurred.items() if name != "mixed_parameters"}
        assert recorded == {name: by_hand[name] for name in recorded}
        assert set(by_hand) <= set(CATALOGUE)
        assert coverage.examined["all"] == coverage.occurred
        assert set(coverage.examined["none"].values()) == {0}
        seen.update(by_hand)
    return seen


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "protocol"), slow_unless(PAIRS, [pair for pair in first_rejection(PAIRS) if pair[0] in DAILY])
)
def test_every_proposer_and_rule_is_counted_as_by_hand(kind, protocol):
    seen = both_counts(kind, protocol, SAMPLINGS[:2])
    assert sum(seen.values()) > 100


@pytest.mark.medium
def test_the_samplings_reach_what_short_scripts_can_reach():
    seen = both_counts("specinfer", Protocol.TREE) + both_counts("draft_model", Protocol.CHAIN)
    seen += both_counts("ngram", Protocol.CHAIN)
    recognised = {name for name, each in CATALOGUE.items() if each.recognise is not None}
    assert recognised - {name for name, times in seen.items() if times} == UNREACHED | {
        *("tool_call", "tool_call_at_step_end", "grammar")
    }


@pytest.mark.medium
def test_tool_calls_are_counted_as_by_hand():
    scenario = replace(faults.load("parser_fed_per_chunk").scenario, sampling=SamplingParams(temperature=1.0))
    effective = scripted_arm(scenario).effective_config()
    arm = arm_record(generate_scenario(scenario, count=6), effective=effective)
    occurred, by_hand = count(arm, {}).occurred, counted([each.trace for each in arm.requests], GAMMA, tree=False)
    assert occurred["tool_call"] == by_hand["tool_call"] > 20
    assert occurred["tool_call"] > occurred["tool_call_at_step_end"] == by_hand["tool_call_at_step_end"] > 5
    silent = replace(arm.requests[0].trace.header, facts={"tools": {"offered": [], "choice": "auto", "unread": "so"}})
    unread = replace(arm.requests[0], trace=replace(arm.requests[0].trace, header=silent))
    assert (
        not {"tool_call", "tool_call_at_step_end"}
        & count(replace(arm, requests=(*arm.requests[1:], unread)), {}).occurred.keys()
    )


@pytest.mark.medium
def test_filters_that_wait_at_the_length_limit_are_counted_as_by_hand():
    scenario = replace(faults.load("filter_not_flushed_at_length").scenario, rows=2)
    effective = scripted_arm(scenario).effective_config()
    arm = arm_record(generate_scenario(scenario, count=6), effective=effective)
    by_hand = counted([each.trace for each in arm.requests], GAMMA, tree=False)["filter_at_length"]
    assert count(arm, {}).occurred["filter_at_length"] == by_hand > 0
    first = arm.requests[0]
    facts = dict(first.trace.header.facts)
    facts["stream"] = {key: value for key, value in facts["stream"].items() if key != "held"}
    older = replace(first, trace=replace(first.trace, header=replace(first.trace.header, facts=facts)))
    assert "filter_at_length" not in count(replace(arm, requests=(older, *arm.requests[1:])), {}).occurred


def test_steps_after_a_neighbour_was_withdrawn_are_counted():
    sampling = SamplingParams(temperature=0.9, max_new_tokens=24, seed=5)
    schedule = Schedule({0: requests(6, sampling)}, leaving={"r0": 2})
    setup = Setup("draft_model", Protocol.CHAIN, gamma=GAMMA, rows=2)
    made = {each.request.id: decode(each.trace) for each in make_loop(setup).serve(schedule)}
    gone = record(made.pop("r0"))
    effective = Effective.from_json({"proposer": "draft_model", "proposer_shape": "chain", "gamma": 4, "rows": 2})
    answered = tuple(map(record, made.values()))
    arm = ArmRecord("a", ArmKind.CANDIDATE, Level.L4, effective, answered, failed=(gone,))
    # of the other requests, the second was active, and the third took the row in that round
    listed = {name: trace.header.facts.get("withdrawals") for name, trace in made.items()}
    assert listed == {"r1": [2], "r2": [2], **dict.fromkeys(("r3", "r4", "r5"))}
    assert count(arm, {}).occurred["cancelled_neighbour"] == 2


def test_long_and_shared_prompts_and_deep_trees_are_counted_as_by_hand():
    prompt = tuple(i * i % 7 for i in range(250))
    listed = [replace(each, prompt=(*prompt[: 250 - 170 * i], i)) for i, each in enumerate(requests(2, SAMPLINGS[3]))]
    setup = setup_of("specinfer", protocol=Protocol.TREE, gamma=8, rows=2, likeness=0.98)
    arm = arm_of(setup, [replace(each, sampling=replace(each.sampling, max_new_tokens=40)) for each in listed], "tree")
    occurred = count(arm, {}).occurred
    by_hand = counted([each.trace for each in arm.requests], GAMMA, tree=True)
    assert {name: occurred[name] for name in UNREACHED - UNRECORDED} == {
        name: by_hand[name] for name in UNREACHED - UNRECORDED
    }
    assert all(by_hand[name] for name in UNREACHED - UNRECORDED)


def test_masked_rows_of_drafts_are_counted_as_by_hand():
    wanted = masked.requests(6, masked.sampling(masked.SENTENCE, temperature=1.0), masked.sampling(masked.LARK))
    listed = [decode(each.trace) for each in masked.decoded(Protocol.CHAIN, "draft_model", wanted).values()]
    effective = Effective.from_json({"proposer": "draft_model", "proposer_shape": "chain", "gamma": 4, "rows": 4})
    arm = ArmRecord("a", ArmKind.CANDIDATE, Level.L4, effective, tuple(record(trace) for trace in listed))
    times = counted(listed, GAMMA, tree=False)["grammar"]
    assert count(arm, {}).occurred["grammar"] == times == sum(int(sum(trace.row > 0)) for trace in listed) > 20


def test_steps_beside_other_parameters_are_those_in_the_recorded_rounds():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=1)
    arm = arm_of(setup, ragged(2, SAMPLINGS[0]), "chain")
    second = arm.requests[1]
    facts = {**second.trace.header.facts, "unlike": [[0, 0], [second.trace.header.facts["round"], 10_000]]}
    marked = replace(second, trace=replace(second.trace, header=replace(second.trace.header, facts=facts)))
    occurred = count(replace(arm, requests=(arm.requests[0], marked)), {}).occurred
    assert occurred["mixed_parameters"] == second.trace.steps > 1


def test_each_trace_is_decoded_once():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(5, SAMPLINGS[0]), "chain")
    decoded = []

    def lazily(index: int) -> RequestRecord:
        stored = arm.requests[index]
        payload = encode(stored.trace)
        return replace(stored, trace=lazy_trace(stored.trace.header, lambda: decoded.append(index) or payload))

    stored = replace(arm, requests=LazyRequests(len(arm.requests), lazily))
    coverage = count(stored, {"all": every_token})
    assert decoded == list(range(5))
    assert coverage == count(arm, {"all": every_token})
    recognised = {name for name, each in CATALOGUE.items() if each.recognise is not None}
    assert recognised - {"filter", "filter_at_length", "preempted"} == set(coverage.occurred)


def test_requests_that_were_preempted_count_once_and_only_where_the_engine_says_so():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(3, SAMPLINGS[0]), "chain")

    def told(request, facts):
        header = replace(request.trace.header, facts=facts)
        return replace(request, trace=replace(request.trace, header=header))

    counts = zip(arm.requests, (2, 0, 1), strict=True)
    known = replace(arm, requests=tuple(told(each, {"preemptions": number}) for each, number in counts))
    assert count(known, {}).occurred["preempted"] == 2
    assert "preempted" not in count(arm, {}).occurred


def test_a_part_of_the_tokens_is_a_part_of_the_count():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(5, SAMPLINGS[0]), "chain")
    coverage = count(arm, {"first": lambda request: np.arange(len(request.tokens)) < 5})
    first, every = coverage.examined["first"], coverage.occurred
    assert 0 < first["recovered_token"] < every["recovered_token"]
    assert all(first[name] <= every[name] for name in every)


def test_rows_of_two_runs_of_the_loop_are_not_neighbours():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=1)
    listed = ragged(2, SAMPLINGS[0])
    apart = [arm_of(setup, [each], "chain").requests[0] for each in listed]
    arm = replace(arm_of(setup, listed, "chain"), requests=tuple(apart))
    assert count(arm, {}).occurred["row_reused"] == 0
    assert count(arm_of(setup, listed, "chain"), {}).occurred["row_reused"] == 1


def with_rounds(request):
    """As an engine records it that moves requests between rows."""
    trace, facts = request.trace, request.trace.header.facts
    first, middle, last = facts["round"], facts["round"] + trace.steps // 2, facts["round"] + trace.steps - 1
    # pauses are between spans, and touching spans are none
    given = {
        "call": facts["call"],
        "rounds": [span for span in ([first, middle - 1], [middle, last]) if span[0] <= span[1]],
    }
    return replace(request, trace=replace(trace, header=replace(trace.header, facts=given)))


def test_rounds_without_rows_give_what_depends_on_rounds_alone():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(5, SAMPLINGS[0]), "chain")
    occurred = count(arm, {}).occurred
    moved = count(replace(arm, requests=tuple(map(with_rounds, arm.requests))), {}).occurred
    of_rows = {"row_reused", "mixed_parameters", "cancelled_neighbour"}
    assert occurred.keys() - moved.keys() == of_rows
    assert moved == {name: occurred[name] for name in occurred if name not in of_rows}
    assert all(moved[name] for name in ("mixed_lengths", "neighbour_joins"))


def test_a_pause_leaves_a_request_out_of_the_batch():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(2, SAMPLINGS[0]), "chain")
    first, second = map(with_rounds, arm.requests)
    header = second.trace.header
    away = [[span[0] + 1000, span[1] + 1000] for span in header.facts["rounds"]]
    later = replace(header, facts={**header.facts, "rounds": away})
    apart = replace(arm, requests=(first, replace(second, trace=replace(second.trace, header=later))))
    assert count(replace(arm, requests=(first, second)), {}).occurred["mixed_lengths"] > 0
    assert count(apart, {}).occurred["mixed_lengths"] == 0


def test_an_old_record_without_rows_and_rounds_leaves_the_batch_unknown():
    setup = setup_of("draft_model", protocol=Protocol.CHAIN, gamma=GAMMA, rows=2)
    arm = arm_of(setup, ragged(3, SAMPLINGS[0]), "chain")
    old = tuple(
        replace(each, trace=replace(each.trace, header=replace(each.trace.header, facts={}))) for each in arm.requests
    )
    occurred = count(replace(arm, requests=old), {}).occurred
    assert "row_reused" not in occurred
    assert occurred["recovered_token"] > 0


@pytest.mark.parametrize("name", ["gumbel", "chain"])
def test_tokens_on_which_filters_decided_are_counted_as_by_hand(name):
    arm = evidence(name).candidate
    coverage = count(arm, {"all": every_token})
    by_hand = counted([each.trace for each in arm.requests], GAMMA, tree=False)
    assert coverage.occurred["filter"] == by_hand["filter"] >= 10
    assert "filter" not in count(evidence("plain").candidate, {}).occurred
