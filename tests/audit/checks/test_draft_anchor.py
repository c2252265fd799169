"""Drafts made again along the record: stale, shifted and foreign drafts are found, sound ones certified."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.checks.draft_anchor import DraftNoise, Likeness, compare
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import LACKING, NoEvidence, Verdict
from audit.selftest.default_suite import default_suite
from audit.selftest.run_arm import gather
from audit.stats.binomial import upper_bound
from engine import faults
from engine.core.types import RecordLevel
from engine.record.effective import Effective
from engine.record.trace import PARTED
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
    assert (arm.effective.facts["repeats"], arm.effective.facts["measured"]) == (True, True)
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
@pytest.mark.parametrize(
    ("shift", "tolerance", "likeness"),
    [(0.0005, 0.001, Likeness.SAME), (0.002, 0.001, Likeness.WRONG), (1e-7, 0.0, Likeness.WRONG)],
)
def test_q_that_moved_by_more_than_rounding_is_wrong_and_by_less_is_not(shift, tolerance, likeness):
    ours, theirs = pair()
    rows = ours.trace.q_rows.copy()
    a, b = np.argsort(rows[0])[-2:]
    rows[0, [a, b]] = ours.trace.q_rows[0, [a, b]] + [shift, -shift]
    steps = compare(changed(ours, q_rows=rows), theirs, DraftNoise(tolerance)).steps
    assert steps[0].likeness is likeness
    assert steps[0].distance == pytest.approx(shift)


def test_a_token_at_the_edge_of_a_truncation_may_be_in_one_row_only_where_numerics_round():
    ours, theirs = pair()
    params = replace(ours.trace.header.sampling, top_k=12)
    rows, others = np.sort(ours.trace.q_rows)[:, ::-1].copy(), np.sort(theirs.trace.q_rows)[:, ::-1].copy()
    rows[:, 12:], others[:, 13:] = 0.0, 0.0
    edge, likely = others / others.sum(1, keepdims=True), others.copy()
    likely[:, 12] = 0.5
    likely /= likely.sum(1, keepdims=True)
    cut = changed(ours, q_rows=rows / rows.sum(1, keepdims=True), header=replace(ours.trace.header, sampling=params))
    for again, noise, likeness in (
        (edge, 0.001, Likeness.SAME),
        (likely, 0.001, Likeness.WRONG),
        (edge, 0.0, Likeness.WRONG),
    ):
        assert compare(cut, changed(theirs, q_rows=again), DraftNoise(noise)).steps[0].likeness is likeness


def parted(record, *leads):
    header = record.trace.header
    return changed(record, header=replace(header, facts={**header.facts, PARTED: [list(lead) for lead in leads]}))


def test_a_difference_is_rounding_only_where_its_lead_is_within_the_noise_and_the_steps_after_it_count():
    ours, theirs = pair()
    tokens = ours.trace.node_token.copy()
    last = int(ours.trace.n_drafted[:2].sum()) - 1
    tokens[last] = (tokens[last] + 1) % 32
    node, noise = int(ours.trace.n_drafted[1]) - 1, DraftNoise(0.001)
    cases = [
        (theirs, noise, Likeness.WRONG),
        (parted(theirs, (1, node, 0.002)), noise, Likeness.WRONG),
        (parted(theirs, (1, node, None)), noise, Likeness.WRONG),
        (parted(theirs, (1, node, 0.0005)), noise, Likeness.ROUNDED),
        (parted(theirs, (1, node, 0.0)), DraftNoise(0.0), Likeness.WRONG),
    ]
    for again, limits, likeness in cases:
        steps = compare(changed(ours, node_token=tokens), again, limits).steps
        assert [item.step for item in steps if item.likeness is not Likeness.SAME] == [1]
        assert steps[1].likeness is likeness
        assert len(steps) == len(compare(ours, theirs, noise).steps) > 2


def test_another_length_is_rounding_only_where_a_confidence_was_at_its_limit():
    ours, theirs = pair()
    step = int(np.argmax(ours.trace.n_drafted == 4))
    place = int(ours.trace.n_drafted[: step + 1].sum()) - 1
    counts = ours.trace.n_drafted.copy()
    counts[step] -= 1
    shorter = changed(
        ours,
        n_drafted=counts,
        **{name: np.delete(getattr(ours.trace, name), place) for name in ("node_token", "node_parent", "node_uniform")},
    )
    for again, likeness in ((theirs, Likeness.WRONG), (parted(theirs, (step, 3, 0.0005)), Likeness.ROUNDED)):
        steps = compare(shorter, again, DraftNoise(0.001)).steps
        assert [item.likeness for item in steps if item.likeness is not Likeness.SAME] == [likeness]


def rounded(found, share, repeats=False):
    """The evidence with rounding in the first step of a share of the requests, in numerics that round."""
    again = found.companions[ArmKind.REDRAFT]
    requests = list(again.requests)
    for index in range(round(share * len(requests))):
        requests[index] = parted(requests[index], (0, 0, 0.0001))
    arm = replace(again, requests=tuple(requests), effective=again.effective.with_fact("repeats", repeats))
    return replace(found, companions={ArmKind.REDRAFT: arm})


def test_rounding_is_a_fault_only_in_significant_number_and_never_where_bits_are_promised():
    found = evidence("draft_one_behind", broken=False)
    few, many = judged(rounded(found, 0.2), margin=0.03), judged(rounded(found, 1.0), margin=0.01)
    assert (few.details["rounded"], few.verdict) == (2, Verdict.INCONCLUSIVE)
    assert (many.details["wrong"], many.verdict) == (0, Verdict.FAULT)
    assert len(many.findings) == many.details["rounded"] == 8
    promised = judged(rounded(found, 0.1, repeats=True))
    assert (promised.details["wrong"], promised.verdict) == (1, Verdict.FAULT)


def test_bounds_are_of_steps_and_of_requests_each_by_name():
    result = judged(rounded(evidence("draft_one_behind", broken=False), 0.2))
    assert (result.details["requests"], result.details["requests_differing"]) == (8, 2)
    assert result.details["bound_of_steps"] == result.bound == upper_bound(2, result.n)
    assert result.details["bound_of_requests"] == upper_bound(2, 8)
    assert f"{result.bound:.2g} of steps and {upper_bound(2, 8):.2g} of requests" in result.summary


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


def test_a_damaged_record_is_a_fault_of_its_request():
    found = evidence("draft_one_behind", broken=False)
    first = changed(found.candidate.requests[0], n_drafted=found.candidate.requests[0].trace.n_drafted[1:])
    damaged = replace(found, candidate=replace(found.candidate, requests=(first, *found.candidate.requests[1:])))
    result = judged(damaged)
    assert result.verdict is Verdict.FAULT
    assert [finding.request for finding in result.findings] == [first.request_id]
    assert "column n_drafted has" in result.summary


def test_a_record_that_no_pass_can_follow_to_its_end_is_a_fault_from_there_on():
    ours, theirs = pair()
    cut = int(theirs.trace.n_drafted[0])
    short = changed(
        theirs,
        **{
            name: getattr(theirs.trace, name)[:size]
            for name, size in {
                "position": 1,
                "n_drafted": 1,
                "n_examined": 1,
                "n_emitted": 1,
                "q_kind": 1,
                "node_token": cut,
                "node_parent": cut,
            }.items()
        },
    )
    steps = compare(ours, short, DraftNoise(0.001)).steps
    assert (steps[-1].step, steps[-1].likeness) == (1, Likeness.WRONG)
    assert "contradicts itself" in steps[-1].message
