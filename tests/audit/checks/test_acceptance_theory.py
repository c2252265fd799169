from dataclasses import replace

import pytest
from scipy.stats import binom

from audit.checks.acceptance_theory import CHECK
from audit.checks.base.interface import evaluate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, world
from tests.support.tiers import fast_first

KINDS = {
    "chain, soft draft": Setup(),
    "chain, deterministic draft": Setup(draft="one_hot"),
    "gumbel, coupled draft": Setup(Protocol.GUMBEL, "coupled"),
    "gumbel, independent draft": Setup(Protocol.GUMBEL, "soft"),
    "gumbel, deterministic draft": Setup(Protocol.GUMBEL, "one_hot"),
}


def judge(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(KINDS.values(), 2), ids=KINDS.keys())
def test_a_clean_engine_meets_the_theory(setup):
    result = judge(arm(world(4), setup, 32))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.bound <= 0.05
    assert {row["name"] for row in result.details["strata"]} >= {
        "all",
        "block position 0",
        "domain chat",
        "domain code",
    }


@pytest.mark.slow
def test_false_alarms_stay_at_their_level():
    """100 clean arms of five kinds at alpha 0.01: inside the 99.9 % binomial band."""
    kinds, false, runs = list(KINDS.values()), 0, 100
    for seed in range(runs):
        setup = replace(kinds[seed % 5], sampling=replace(SAMPLED, max_new_tokens=32, seed=seed))
        false += judge(arm(world(seed % 7), setup, 5), alpha=0.01).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)


FAULTS = {
    "sqrt acceptance": (Setup(fault="sqrt"), 16),
    "stale q": (Setup(fault="stale_q"), 16),
    "unverified under shared noise": (Setup(Protocol.GUMBEL, "soft", fault="unverified"), 24),
    "lenient": (Setup(fault="lenient"), 64),
}


@pytest.mark.medium
@pytest.mark.parametrize(("setup", "requests"), fast_first(FAULTS.values()), ids=FAULTS.keys())
def test_wrong_acceptance_is_found(setup, requests):
    """Each fault in at least 2 of 3 worlds."""
    found = 0
    for seed in range(3):
        broken = replace(setup, sampling=replace(SAMPLED, seed=seed))
        found += judge(arm(world(seed + 4), broken, requests)).verdict is Verdict.FAULT
    assert found >= 2


@pytest.mark.medium
def test_faults_after_the_acceptance_are_not_seen():
    """What the page says that the check cannot see."""
    for fault in ("from_p", "reuse"):
        assert judge(arm(world(4), Setup(fault=fault), 16)).verdict is not Verdict.FAULT


@pytest.mark.medium
def test_a_finding_names_stratum_and_counts():
    result = judge(arm(world(4), Setup(fault="sqrt"), 16))
    assert "block position 0" in result.summary
    assert any("domain" in each.message and "expected" in each.message for each in result.findings)


def test_few_drafts_are_no_certificate():
    assert judge(arm(world(4), Setup(), 2)).verdict is Verdict.INCONCLUSIVE


def test_without_drafts_there_is_nothing_to_certify():
    assert judge(arm(world(4), Setup(Protocol.GUMBEL, "none"), 2)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.CHAIN])
def test_greedy_arms_are_not_judged(protocol):
    assert judge(arm(world(4), Setup(protocol, "one_hot", sampling=GREEDY), 1)).verdict is Verdict.NOT_RUN
