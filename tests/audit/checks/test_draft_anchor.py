"""Drafts made again along the record: stale, shifted and foreign drafts are found, sound ones certified."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.checks.draft_anchor import Likeness, compare
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import LACKING, NoEvidence, Verdict
from audit.selftest.default_suite import default_suite
from audit.selftest.run_arm import gather
from engine import faults
from engine.core.types import RecordLevel
from engine.record.effective import Effective
from tests.support.tiers import slow_unless

CHECK = checks.load("draft_anchor")
TOKENS = 512
STALE = ("draft_one_behind", "draft_rewound_too_far", "draft_vocabulary_shifted", "draft_cache_not_filled")
FOREIGN = ("copies_from_previous_request", "drafts_of_another_request")


@functools.cache
def evidence(fault, broken=True, record=RecordLevel.FULL, temperature=None):
    """The fault's proposer in a default suite, with the fault or without it."""
    scenario = faults.load(fault).scenario
    if temperature is not None:
        scenario = replace(scenario, sampling=replace(scenario.sampling, temperature=temperature))
    trial = default_suite(scenario, fault if broken else None, 1, TOKENS)
    arms = tuple(replace(arm, checks={"draft_anchor": {}}, record=record) for arm in trial.arms)
    return gather(replace(trial, arms=arms))


def judged(found, **params):
    return evaluate(CHECK, found, params)


@pytest.mark.medium
@pytest.mark.parametrize("fault", slow_unless([*STALE, *FOREIGN], ["draft_one_behind", "copies_from_previous_request"]))
def test_a_draft_from_a_stale_or_foreign_state_is_found_and_the_sound_proposer_is_certified(fault):
    result = judged(evidence(fault))
    assert result.verdict is Verdict.FAULT, result.summary
    assert "not the proposer's own for this text" in result.summary
    clean = judged(evidence(fault, broken=False))
    assert clean.verdict is Verdict.CERTIFIED, clean.summary
    assert clean.details["largest_distance"] < 1e-9


@pytest.mark.medium
def test_the_redraft_arm_is_the_candidate_alone_and_without_its_fault():
    arm = evidence("draft_one_behind").companions[ArmKind.REDRAFT]
    assert (arm.effective.rows, arm.effective.fault, arm.effective.mixed) == (1, None, None)
    assert (arm.effective.proposer, arm.effective.facts["copies"]) == ("draft_model", False)
    assert len(arm.requests) == 8
    assert evidence("copies_from_previous_request").companions[ArmKind.REDRAFT].effective.facts["copies"] is True


def pair(fault="draft_one_behind"):
    """One request of a sound arm, and the same request drafted again."""
    found = evidence(fault, broken=False)
    again = found.companions[ArmKind.REDRAFT].by_key()
    return next((each, again[each.key]) for each in found.candidate.requests if each.trace.n_accepted > 2)


def changed(record, **columns):
    return replace(record, trace=replace(record.trace, **columns))


@pytest.mark.medium
def test_q_that_moved_by_more_than_rounding_is_wrong_and_by_less_is_not():
    ours, theirs = pair()
    rows = ours.trace.q_rows.copy()
    a, b = np.argsort(rows[0])[-2:]
    for shift, likeness in ((0.0005, Likeness.SAME), (0.002, Likeness.WRONG)):
        rows[0, [a, b]] = ours.trace.q_rows[0, [a, b]] + [shift, -shift]
        steps = compare(changed(ours, q_rows=rows), theirs, 0.001, copies=False).steps
        assert steps[0].likeness is likeness
        assert steps[0].distance == pytest.approx(shift)


def test_other_tokens_end_the_comparison_and_are_wrong_only_where_nothing_rounds():
    ours, theirs = pair()
    tokens = ours.trace.node_token.copy()
    last = int(ours.trace.n_drafted[:2].sum()) - 1
    tokens[last] = (tokens[last] + 1) % 32
    for copies, likeness in ((False, Likeness.UNLIKE), (True, Likeness.WRONG)):
        found = compare(changed(ours, node_token=tokens), theirs, 1.0, copies=copies)
        assert [each.likeness for each in found.steps] == [Likeness.SAME, likeness]
        assert found.recorded == ours.trace.steps > 2


def unlike(found, share):
    """The evidence with another last drafted token in the first step of a share of the requests."""
    requests = list(found.candidate.requests)
    for index in range(round(share * len(requests))):
        trace = requests[index].trace
        step = int(np.argmax(trace.n_drafted > trace.n_examined))
        tokens, last = trace.node_token.copy(), int(trace.n_drafted[: step + 1].sum()) - 1
        tokens[last] = (tokens[last] + 1) % 32
        requests[index] = changed(requests[index], node_token=tokens)
    return replace(found, candidate=replace(found.candidate, requests=tuple(requests)))


def test_differences_that_may_be_rounding_are_a_fault_only_in_significant_number():
    found = evidence("draft_one_behind", broken=False)
    few, many = judged(unlike(found, 0.2), margin=0.05), judged(unlike(found, 1.0), margin=0.01)
    assert (few.details["unlike"], few.verdict) == (2, Verdict.INCONCLUSIVE)
    assert (many.details["wrong"], many.verdict) == (0, Verdict.FAULT)
    assert len(many.findings) == many.details["unlike"] == 8


@pytest.mark.medium
def test_without_rows_of_q_the_tokens_are_compared():
    found = evidence("draft_one_behind", broken=False, record=RecordLevel.TOKENS)
    result = judged(found)
    assert (result.verdict, result.details["largest_distance"]) == (Verdict.CERTIFIED, 0.0)
    assert result.n == judged(evidence("draft_one_behind", broken=False)).n


def test_state_shared_by_declaration_leaves_nothing_to_claim_and_a_missing_arm_leaves_the_check_undecided():
    found = evidence("draft_one_behind", broken=False)
    shared = replace(found, candidate=replace(found.candidate, effective=Effective(proposer_state="shared")))
    result = judged(shared)
    assert (result.verdict, LACKING in result.details) == (Verdict.NOT_RUN, False)
    assert "depend on other requests" in result.summary
    alone = judged(Evidence(found.candidate))
    assert (alone.verdict, alone.details[LACKING]) == (Verdict.NOT_RUN, True)
    assert isinstance(CHECK.applies(Evidence(found.candidate)), NoEvidence)


def test_a_damaged_record_is_undecided():
    found = evidence("draft_one_behind", broken=False)
    first = changed(found.candidate.requests[0], n_drafted=found.candidate.requests[0].trace.n_drafted[1:])
    damaged = replace(found, candidate=replace(found.candidate, requests=(first, *found.candidate.requests[1:])))
    result = judged(damaged)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "unreadable record" in result.summary
