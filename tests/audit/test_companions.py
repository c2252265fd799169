"""Companion arms: planned only where a check asks for them, and shaped as their kind says."""

from __future__ import annotations

import dataclasses

import pytest

from audit import checks
from audit.checks.battery import default_checks
from audit.evidence.records import ArmKind
from audit.runs import arms
from audit.suite.loader import load_suite
from tests.audit.suite_files import write_suite


@pytest.fixture
def suite(tmp_path):
    return load_suite(write_suite(tmp_path))


def asking(monkeypatch, *kinds):
    """Every check of the registry asks for arms of these kinds."""
    known = checks.load
    monkeypatch.setattr(arms, "load", lambda name: dataclasses.replace(known(name), companions=kinds))


def test_no_companion_runs_unless_a_check_asks(suite, monkeypatch):
    asking(monkeypatch)
    kinds = {arm.kind for arm in arms.plan_arms(suite)}
    assert kinds <= {ArmKind.BASELINE, ArmKind.CONTROL, ArmKind.CANDIDATE}


def test_companions_follow_their_candidate_and_differ_in_what_they_are_for(suite, monkeypatch):
    asking(monkeypatch, ArmKind.ALONE, ArmKind.REVERSED, ArmKind.OTHER_GAMMA)
    planned = arms.plan_arms(suite)
    at = next(i for i, arm in enumerate(planned) if arm.kind is ArmKind.CANDIDATE)
    candidate, alone, backwards, regamma = planned[at : at + 4]
    assert [each.kind for each in (alone, backwards, regamma)] == [ArmKind.ALONE, ArmKind.REVERSED, ArmKind.OTHER_GAMMA]
    assert {each.of for each in (alone, backwards, regamma)} == {candidate.name}
    assert alone.plan == dataclasses.replace(candidate.plan, rows=1, mixed=False)
    assert regamma.plan.gamma != candidate.plan.gamma
    assert regamma.plan == dataclasses.replace(candidate.plan, gamma=regamma.plan.gamma)
    forward = arms.slots(suite, dataclasses.replace(alone, most=None))
    reverse = arms.slots(suite, dataclasses.replace(backwards, most=None))
    assert reverse == forward[::-1]


def test_an_anchor_is_the_target_alone_whatever_the_candidate_is(suite, monkeypatch):
    asking(monkeypatch, ArmKind.ANCHOR)
    planned = {arm.name: arm for arm in arms.plan_arms(suite)}
    anchors = [arm for arm in planned.values() if arm.kind is ArmKind.ANCHOR]
    assert anchors
    for each in anchors:
        assert (each.plan.proposer, each.plan.fault, each.plan.rows) == (None, None, 1)
        assert each.sampling == planned[each.of].sampling
        assert each.most == arms.ANCHOR_REQUESTS


def test_a_companion_runs_at_most_so_many_requests_of_the_candidate(suite, monkeypatch):
    asking(monkeypatch, ArmKind.ALONE)
    alone = next(arm for arm in arms.plan_arms(suite) if arm.kind is ArmKind.ALONE)
    few = arms.slots(suite, dataclasses.replace(alone, most=2, samples=3))
    every = arms.slots(suite, dataclasses.replace(alone, most=None, samples=3))
    assert len(few) == 2
    assert all(slot in every for slot in few)


def test_an_arm_that_names_no_checks_gets_the_standard_ones_and_is_read_again(suite):
    sampled = next(arm for arm in suite.arms if arm.name == "sampled")
    (plan,) = (arm.plan for arm in arms.plan_arms(suite) if arm.name == "sampled")
    standard = default_checks(suite.backend, plan, sampled.sampling, suite.models["target"], calls=True)
    assert tuple(sampled.checks) == standard
    assert [arm.name for arm in arms.plan_arms(suite) if arm.of] == ["sampled/reread", "sampled/redraft"]
