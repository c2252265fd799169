"""Checks that draw numbers from a key leave sampled arms of other engines alone, and greedy ones not."""

from dataclasses import replace

import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from engine.record.effective import Effective
from tests.audit.checks.simulator import GREEDY, Setup, arm, world

FOREIGN = Effective.from_json({"requested": {"gamma": 4}, "effective": {"gamma": 4}})


@pytest.mark.parametrize("name", ["replay", "rng_streams", "transcript"])
def test_a_sampled_arm_of_another_engine_is_not_replayed(name):
    sampled = arm(world(1), Setup(), 2)
    check = checks.load(name)
    assert evaluate(check, Evidence(sampled), {}).verdict is not Verdict.NOT_RUN
    found = evaluate(check, Evidence(replace(sampled, effective=FOREIGN)), {})
    assert found.verdict is Verdict.NOT_RUN
    assert "another engine drew the random numbers" in found.summary


def test_a_greedy_arm_of_another_engine_is_replayed():
    greedy = replace(arm(world(1), Setup(Protocol.GREEDY, sampling=GREEDY), 2), effective=FOREIGN)
    assert "decisions" in evaluate(checks.load("replay"), Evidence(greedy), {}).summary
