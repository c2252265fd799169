"""Tool-call equality: broken readers and broken decoders are found, and the model's own mistakes are told apart."""

import functools
from dataclasses import replace

import pytest

from audit import checks
from audit.checks.base.interface import Design, evaluate, foreseen
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import faults
from engine.backends.evidence import Part
from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.faults.streams import FILTERED
from tests.engine.faults.arms import arm_record, generate

CHECK = checks.load("tool_call_equality")
SCENARIO = faults.load("parser_fed_per_chunk").scenario
GREEDY = replace(SCENARIO, protocol=Protocol.GREEDY, sampling=SamplingParams())
SAMPLED = replace(SCENARIO, protocol=Protocol.CHAIN)
ANSWERS = 8
CALL = {"name": "letters", "arguments": {"text": "b"}}


@functools.cache
def arms(scenario_of="coupled", fault=None, count=ANSWERS):
    scenario = {"coupled": SCENARIO, "greedy": GREEDY, "sampled": SAMPLED}[scenario_of]
    plain = replace(scenario, protocol=Protocol.GREEDY if scenario is GREEDY else Protocol.GUMBEL)
    return Evidence(
        arm_record(generate(scenario, fault, count)),
        arm_record(generate(plain, count=count, proposer=False), ArmKind.BASELINE),
        arm_record(generate(replace(plain, rows=1), count=count, proposer=False), ArmKind.CONTROL),
    )


def with_fact(arm, changes):
    """The arm with keys of the fact `tools` replaced, by the request's index; None removes the fact."""
    requests = list(arm.requests)
    for index, change in changes.items():
        header = requests[index].trace.header
        fact = {} if change is None else {"tools": {**header.facts["tools"], **change}}
        facts = {**{key: value for key, value in header.facts.items() if key != "tools"}, **fact}
        requests[index] = replace(
            requests[index], trace=replace(requests[index].trace, header=replace(header, facts=facts))
        )
    return replace(arm, requests=tuple(requests))


def ended(arm, reason=FinishReason.EOS):
    """The arm with another end, so that answers of full length can be valid."""
    return replace(arm, requests=tuple(replace(each, finish_reason=reason) for each in arm.requests))


def silent(arm):
    """The arm without its template, so that only the reported calls count."""
    return with_fact(arm, {index: {"template": None} for index in range(len(arm.requests))})


def judged(evidence, **params):
    return evaluate(CHECK, evidence, params)


@pytest.mark.medium
@pytest.mark.parametrize("scenario", ["coupled", "greedy"])
def test_equal_calls_are_certified_with_the_bound_that_the_count_proves(scenario):
    found = judged(arms(scenario))
    assert (found.verdict, found.n, found.statistic) == (Verdict.CERTIFIED, ANSWERS, 0.0)
    assert found.bound == pytest.approx(1.0 - 0.01 ** (1.0 / ANSWERS))
    assert found.details["calls"] > 10
    assert judged(arms(scenario), min_answers=ANSWERS + 1).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["parser_fed_per_chunk", "tool_arguments_cut_at_accept", "tool_call_from_draft"])
@pytest.mark.parametrize("scenario", ["coupled", "sampled"])
def test_a_broken_reader_is_found_in_every_arm(scenario, fault):
    clean, broken = judged(arms(scenario)), judged(arms(scenario, fault))
    assert clean.details["misread"] == 0
    assert clean.verdict is not Verdict.FAULT
    assert broken.verdict is Verdict.FAULT
    assert "answers hold other calls than the engine reports" in broken.summary
    assert broken.findings[0].message.startswith("the engine's call ")
    assert (
        judged(replace(arms(scenario, fault), candidate=silent(arms(scenario, fault).candidate))).details["misread"]
        == 0
    )


@pytest.mark.medium
def test_calls_of_other_tokens_are_found_without_any_text():
    evidence = arms("coupled", "target_rows_shifted")
    found = judged(replace(evidence, candidate=silent(evidence.candidate)))
    assert found.verdict is Verdict.FAULT
    assert found.details["differences"]["real"] == found.statistic > 0
    assert found.findings[0].message.startswith("real: call ")


def test_arms_that_share_no_numbers_are_not_compared():
    evidence = arms("coupled")
    shifted = tuple(
        replace(each, trace=replace(each.trace, header=replace(each.trace.header, stream=each.trace.header.stream + 1)))
        for each in evidence.candidate.requests
    )
    found = judged(replace(evidence, candidate=replace(evidence.candidate, requests=shifted)))
    assert (found.verdict, found.summary) == (Verdict.INCONCLUSIVE, "the arms do not share their random numbers")


def test_what_is_wrong_in_both_arms_is_about_the_model():
    evidence = arms("greedy")
    found = judged(evidence)
    assert (found.verdict, found.details["wrong_in_both"]) == (Verdict.CERTIFIED, ANSWERS)
    assert found.summary.endswith("wrong in both arms: 8, which is about the model and not about speculation")
    assert {each.message for each in found.findings} == {"in both arms: the answer is cut by its length"}
    ends = replace(evidence, candidate=ended(evidence.candidate), baseline=ended(evidence.baseline))
    assert judged(ends).details["wrong_in_both"] == 0


@pytest.mark.medium
def test_another_end_is_a_difference():
    evidence = arms("greedy")
    found = judged(replace(evidence, candidate=ended(evidence.candidate)))
    assert found.verdict is Verdict.FAULT
    assert "it ended by eos, not by length" in found.findings[0].message


@functools.cache
def pairs(worse, better, n=400):
    """A sampled arm of n answers of which some pass in one arm only; its records differ in their names only."""
    evidence = arms("sampled")
    good, bad = {"calls": [CALL], "template": None}, {"calls": [], "template": None}

    def arm(source, failing):
        first = source.requests[0]
        listed = tuple(replace(first, request_id=f"r{i}", case_id=f"r{i}") for i in range(n))
        return with_fact(ended(replace(source, requests=listed)), {i: bad if i in failing else good for i in range(n)})

    candidate = arm(evidence.candidate, set(range(worse)))
    return Evidence(candidate, arm(evidence.baseline, set(range(worse, worse + better))))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("worse", "better", "verdict"),
    [
        (0, 0, Verdict.CERTIFIED),
        (4, 4, Verdict.CERTIFIED),
        (12, 1, Verdict.INCONCLUSIVE),
        (40, 8, Verdict.FAULT),
        (8, 40, Verdict.FAULT),
    ],
)
def test_sampled_arms_are_compared_by_the_answers_that_pass(worse, better, verdict):
    found = judged(pairs(worse, better))
    assert (found.verdict, found.n) == (verdict, 400)
    assert (found.details["worse"], found.details["better"]) == (worse, better)
    assert found.effect == pytest.approx((worse - better) / 400)
    assert (found.bound <= found.margin) == (verdict is Verdict.CERTIFIED)


def test_few_sampled_answers_decide_nothing():
    assert judged(pairs(0, 0, 20)).verdict is Verdict.INCONCLUSIVE


def test_answers_that_nobody_read_leave_the_arm_undecided():
    evidence = arms("coupled")
    unread = {"tools": {"offered": [], "choice": "auto", "unread": "no template"}}
    first = evidence.candidate.requests[0]
    header = replace(first.trace.header, facts=unread)
    requests = (replace(first, trace=replace(first.trace, header=header)), *evidence.candidate.requests[1:])
    found = judged(replace(evidence, candidate=replace(evidence.candidate, requests=requests)))
    assert (found.verdict, found.n) == (Verdict.INCONCLUSIVE, ANSWERS - 1)
    assert "no template" in found.summary
    alone = judged(replace(evidence, candidate=replace(evidence.candidate, requests=requests[:1])))
    assert (alone.verdict, alone.lacking) == (Verdict.NOT_RUN, True)


def test_without_tools_there_is_nothing_to_judge():
    evidence = arms("coupled")
    bare = with_fact(evidence.candidate, dict.fromkeys(range(ANSWERS)))
    found = judged(replace(evidence, candidate=bare))
    assert (found.verdict, found.lacking, found.summary) == (Verdict.NOT_RUN, False, "no request offers tools")
    design = Design(4, 4, 400, 3, greedy=True, level=Level.L4)
    assert foreseen(CHECK, CHECK.defaults, design) == "no request offers tools"
    offering = replace(design, offers=4)
    assert foreseen(CHECK, CHECK.defaults, offering) is None
    mute = replace(offering, shown=replace(offering.shown, parts=offering.shown.parts - {Part.CALLS}))
    assert "does not report the tool calls" in foreseen(CHECK, CHECK.defaults, mute)


def test_the_plan_of_a_sampled_arm_follows_from_the_margin():
    design = Design(400, 400, 4000, 3, greedy=False, level=Level.L4, offers=400)
    need, wider = (
        CHECK.plan({**CHECK.defaults, "margin": margin, "within_margin": True}, design) for margin in (0.05, 0.1)
    )
    assert (need.units, need.unit, wider.units) == (316, "answers", 79)
    assert CHECK.plan({**CHECK.defaults, "min_answers": 100}, replace(design, greedy=True)).units == 100
    assert CHECK.plan({**CHECK.defaults, "min_answers": 7}, design).units == 7
    served = replace(design.shown, parts=design.shown.parts - {Part.CALLED_TEXT})
    assert CHECK.plan(CHECK.defaults, replace(design, shown=served)).units == 316


@pytest.mark.medium
@pytest.mark.parametrize("baseline", [True, False])
def test_few_sampled_answers_are_certified_by_the_second_reading(baseline):
    evidence = arms("sampled") if baseline else replace(arms("sampled"), baseline=None)
    found = judged(evidence)
    assert (found.verdict, found.n, found.statistic, found.details["read_again"]) == (Verdict.CERTIFIED, 8, 0.0, 8)
    assert found.bound == pytest.approx(1.0 - 0.01 ** (1.0 / ANSWERS))
    assert found.summary.startswith("the calls of 8 answers are those of their texts, read again")
    assert judged(evidence, min_answers=9).verdict is Verdict.INCONCLUSIVE
    assert judged(evidence, within_margin=True).verdict is (Verdict.INCONCLUSIVE if baseline else Verdict.CERTIFIED)


@pytest.mark.medium
def test_one_other_call_is_a_fault_without_a_baseline():
    evidence = replace(arms("sampled"), baseline=None)
    calls = evidence.candidate.requests[3].trace.header.facts["tools"]["calls"]
    for other in (calls[:-1], [*calls, calls[-1]], [{**calls[0], "name": "other"}, *calls[1:]]):
        found = judged(replace(evidence, candidate=with_fact(evidence.candidate, {3: {"calls": other}})))
        assert (found.verdict, found.statistic, found.details["misread"]) == (Verdict.FAULT, 1.0, 1)
    mute = replace(evidence, candidate=with_fact(evidence.candidate, {3: {"template": None}}))
    assert judged(mute).verdict is Verdict.INCONCLUSIVE
    assert "the texts of 1 of 8 answers cannot be read again" in judged(mute).summary
    assert judged(replace(evidence, candidate=silent(evidence.candidate))).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_calls_are_read_out_of_the_text_before_filters_change_it():
    filtered = replace(SAMPLED, stream=FILTERED.stream)
    candidate = arm_record(generate(filtered, count=ANSWERS))
    assert any("[" in request.text for request in candidate.requests)
    assert judged(Evidence(candidate, None)).verdict is Verdict.CERTIFIED
