"""What is left of an arm for those who see no record."""

import numpy as np
import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.selftest import battery
from audit.selftest.detect import from_outside
from audit.selftest.run_arm import gather
from audit.selftest.scenarios import suite_of
from engine import faults
from engine.core.types import Role
from engine.record.effective import Effective
from tests.support.tiers import slow_unless

FAULT = "argmax_draft_soft_q"


@pytest.fixture(scope="module")
def evidence():
    return gather(suite_of(faults.load(FAULT).scenario, FAULT, 0, 256, battery.names()))


@pytest.mark.parametrize("level", slow_unless([Level.L0, Level.L1], [Level.L1]))
def test_tokens_and_ends_stay_and_decisions_go(evidence, level):
    outside = from_outside(evidence, level)
    assert outside.candidate.level is level
    assert outside.candidate.effective == Effective()
    for before, after in zip(evidence.candidate.requests, outside.candidate.requests, strict=True):
        assert (after.tokens, after.text, after.finish_reason) == (before.tokens, before.text, before.finish_reason)
        assert not len(after.trace.node_token)
        assert set(after.trace.role) == {Role.PLAIN}
        assert not len(after.trace.logits)
        assert not len(after.trace.p)
        shown = before.trace.logprob if level is Level.L1 else np.empty(0)
        np.testing.assert_array_equal(after.trace.logprob, shown)


def test_runs_of_ones_own_stay_whole(evidence):
    outside = from_outside(evidence, Level.L0)
    assert outside.baseline is evidence.baseline
    for kind, arm in outside.companions.items():
        assert (arm is evidence.companions[kind]) == (kind.reads)


@pytest.mark.medium
@pytest.mark.parametrize("level", [Level.L0, Level.L1])
def test_a_clean_arm_seen_from_outside_is_no_fault(level):
    clean = gather(suite_of(faults.load(FAULT).scenario, None, 0, 256, battery.names(level)))
    found = battery.results(from_outside(clean, level), battery.names(level), {})
    assert {name: each.summary for name, each in found.items() if each.verdict is Verdict.FAULT} == {}
