from dataclasses import replace

import pytest

from audit.checks import gamma_invariance
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from tests.audit.checks.engine_arms import plan
from tests.audit.checks.reruns import arena_evidence, engine_evidence, simulated
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, world
from tests.support.tiers import fast_first

TARGET = world(6)
COUPLED = {"greedy": Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), "gumbel": Setup(Protocol.GUMBEL, "coupled")}
CHAIN = Setup()


def verdict(evidence, **params):
    return evaluate(gamma_invariance.CHECK, evidence, params)


def regamma(setup, requests=16, target=TARGET, **changes):
    return simulated(target, setup, requests, regamma=replace(setup, gamma=2, **changes))


@pytest.mark.medium
@pytest.mark.parametrize("setup", COUPLED.values(), ids=COUPLED.keys())
def test_tokens_do_not_depend_on_the_draft_length(setup):
    result = verdict(regamma(setup))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.n == 16
    assert verdict(regamma(setup, 4)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
@pytest.mark.parametrize("setup", COUPLED.values(), ids=COUPLED.keys())
def test_tokens_that_do_are_a_fault(setup):
    result = verdict(regamma(setup, fault="unverified"))
    assert result.verdict is Verdict.FAULT
    assert result.effect > 0.2
    assert "against regamma" in result.findings[0].message


def test_under_rejection_few_tokens_are_inconclusive_and_say_what_they_could_show():
    result = verdict(regamma(CHAIN, 3))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.detectable > 0
    assert f"detectable leak {result.detectable:.3g}" in result.summary


@pytest.mark.slow
def test_under_rejection_clean_arms_are_no_fault_and_enough_of_them_certified():
    verdicts = [verdict(regamma(CHAIN, target=world(seed), requests=16)).verdict for seed in range(12)]
    assert Verdict.FAULT not in verdicts
    assert verdicts.count(Verdict.CERTIFIED) >= 6


@pytest.mark.medium
@pytest.mark.parametrize("fault", fast_first(["sqrt", "from_p", "stale_q", "wrong_bonus_row"]))
def test_a_law_that_breaks_at_another_length_is_a_fault(fault):
    result = verdict(regamma(CHAIN, 32, fault=fault))
    assert result.verdict is Verdict.FAULT, result.summary


@pytest.mark.medium
def test_the_paired_contrast_is_seen_where_the_battery_is_told_nothing():
    """Rows that agree with their tokens at both lengths, of a sharper target at the other."""
    evidence = regamma(CHAIN, 16)
    sharper = simulated(world(6, sharpness=3.0), CHAIN, 16, regamma=replace(CHAIN, gamma=2))
    mixed = replace(evidence, companions=sharper.companions)
    result = verdict(mixed)
    assert result.verdict is Verdict.FAULT
    assert result.findings[-1].message.startswith("mean log-probability changes")


def test_missing_evidence_is_not_run():
    evidence = regamma(CHAIN, 2)
    assert verdict(Evidence(evidence.candidate)).verdict is Verdict.NOT_RUN
    low = replace(evidence.companions[ArmKind.OTHER_GAMMA], level=Level.L1)
    assert verdict(replace(evidence, companions={ArmKind.OTHER_GAMMA: low})).verdict is Verdict.NOT_RUN


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.GUMBEL, Protocol.CHAIN])
def test_the_engine_is_invariant(protocol):
    evidence = engine_evidence(plan(protocol), replace(SAMPLED, max_new_tokens=32), 6, kinds=(ArmKind.OTHER_GAMMA,))
    result = verdict(evidence, margin=0.9)
    expected = Verdict.CERTIFIED if protocol is Protocol.GUMBEL else Verdict.INCONCLUSIVE
    assert result.verdict is expected, result.summary
    assert "draft length 2 beside 4" in result.summary


@pytest.mark.medium
def test_noise_keyed_by_draws_depends_on_the_length():
    result = verdict(arena_evidence("noise_keyed_by_draw", 6, kinds=(ArmKind.OTHER_GAMMA,)))
    assert result.verdict is Verdict.FAULT
