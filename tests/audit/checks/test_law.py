from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks.base.interface import evaluate
from audit.checks.law.check import CHECK
from audit.evidence.law.battery import battery
from audit.evidence.law.leak import estimate_leak
from audit.evidence.law.sums import LawSums
from audit.evidence.law.table import request_by_request, tabulate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first

LENGTH_32 = replace(SAMPLED, max_new_tokens=32)
CLEAN = {
    "chain, soft draft": Setup(),
    "chain, deterministic draft": Setup(draft="one_hot"),
    "chain, truncated": Setup(sampling=replace(SAMPLED, top_p=0.9)),
    "gumbel, coupled draft": Setup(Protocol.GUMBEL, "coupled"),
    "gumbel, independent draft": Setup(Protocol.GUMBEL, "soft"),
    "plain": Setup(Protocol.GUMBEL, "none"),
}


def judge(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


def seeded(setup, seed):
    return replace(setup, sampling=replace(setup.sampling, seed=seed))


@pytest.mark.medium
@pytest.mark.parametrize("setup", CLEAN.values(), ids=CLEAN.keys())
def test_a_clean_engine_is_certified(setup):
    result = judge(arm(world(4), setup, 16))
    assert result.verdict is Verdict.CERTIFIED, (result.summary, result.findings)
    assert result.n == 1024
    assert result.bound <= result.margin


@pytest.mark.slow
def test_family_wise_false_alarms_stay_at_their_level():
    """200 clean arms of four kinds at alpha 0.01: inside the 99.9 % binomial band."""
    kinds = ("chain, soft draft", "chain, deterministic draft", "gumbel, coupled draft", "plain")
    false, runs = 0, 200
    for seed in range(runs):
        setup = replace(CLEAN[kinds[seed % 4]], sampling=replace(LENGTH_32, seed=seed))
        clean = arm(world(seed % 9, sharpness=(1.0, 1.5, 3.0)[seed % 3]), setup, 5)
        false += judge(clean).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)


@pytest.mark.slow
def test_an_argmax_draft_with_soft_q_is_found_at_512_tokens():
    found = 0
    for seed in range(20):
        broken = arm(world(seed), seeded(Setup(fault="argmax_draft"), seed), 8)
        found += judge(broken).verdict is Verdict.FAULT
    assert found >= 19


POWER = {
    "resample from p": ("from_p", 8, "residual"),
    "sqrt acceptance": ("sqrt", 16, "accepted ~ min(1, p / q)"),
    "bonus from the wrong row": ("wrong_bonus_row", 16, ""),
    "stale q": ("stale_q", 8, "drafted ~ q"),
    "acceptance number reused": ("reuse", 16, "recovered ~ residual, by id"),
}


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "requests", "component"), fast_first(POWER.values()), ids=POWER.keys())
def test_faults_are_found_and_the_component_names_them(fault, requests, component):
    """Each fault in at least 4 of 5 seeds."""
    found = 0
    for seed in range(5):
        result = judge(arm(world(seed), seeded(Setup(fault=fault), seed), requests))
        named = any(component in finding.message for finding in result.findings)
        found += result.verdict is Verdict.FAULT and named
    assert found >= 4


NAMED = {
    "bonus from the wrong row": (Setup(fault="wrong_bonus_row"), 16, "bonus: previous row"),
    "a tenth accepted unseen": (Setup(fault="lenient"), 48, "draft leak 0.1"),
    "a fifth of first drafts unverified": (
        Setup(Protocol.GUMBEL, "soft", fault="unverified"),
        48,
        "position 0: draft leak",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize(("setup", "requests", "name"), fast_first(NAMED.values()), ids=NAMED.keys())
def test_the_leading_alternative_names_the_fault(setup, requests, name):
    """In each of three seeds."""
    for seed in range(3):
        result = judge(arm(world(seed), seeded(setup, seed), requests))
        assert result.details["alternatives"][0]["name"].startswith(name)


def test_tokens_without_probability_are_left_out_of_the_alternatives():
    clean = arm(world(4), Setup(sampling=replace(SAMPLED, top_k=3)), 2)
    trace = clean.requests[1].trace
    broken = changed(clean, 1, token=put(trace.token, -1, int(np.argmin(trace.logits[-1]))))
    made = tabulate(broken.requests, np.random.default_rng(1))
    assert made.process.n == len(made.table.depth) - 1


@pytest.mark.medium
def test_a_bonus_fault_shows_in_the_bonus_stratum():
    result = judge(arm(world(4), Setup(fault="wrong_bonus_row"), 16))
    strata = {row["stratum"] for row in result.details["components"] if row["p_adjusted"] < 0.01}
    assert "bonus" in strata
    assert "block position 0" not in strata


@pytest.mark.slow
def test_a_fifth_of_first_drafts_unverified_is_found_under_shared_noise():
    found = 0
    for seed in range(5):
        broken = arm(world(seed), seeded(Setup(Protocol.GUMBEL, "soft", fault="unverified"), seed), 48)
        found += judge(broken).verdict is Verdict.FAULT
    assert found >= 4


@pytest.mark.medium
def test_an_engine_that_ignores_the_recorded_temperature_is_found():
    cold = arm(world(4), Setup(Protocol.GUMBEL, "none", sampling=replace(SAMPLED, temperature=0.7)), 16)
    claimed = replace(
        cold,
        requests=tuple(
            replace(each, trace=replace(each.trace, header=replace(each.trace.header, sampling=SAMPLED)))
            for each in cold.requests
        ),
    )
    result = judge(claimed)
    assert result.verdict is Verdict.FAULT
    assert any("led by p to the power 1.4 " in row["name"] for row in result.details["components"])


def test_an_impossible_token_needs_no_sample():
    clean = arm(world(4), Setup(sampling=replace(SAMPLED, top_k=3)), 2)
    trace = clean.requests[1].trace
    last = int(np.argmin(trace.logits[-1]))
    result = judge(changed(clean, 1, token=put(trace.token, -1, last)))
    assert result.verdict is Verdict.FAULT
    assert result.findings[0].message == f"token {last} was emitted, its p is 0"
    assert result.findings[0].step == trace.steps - 1


@pytest.mark.medium
def test_component_tests_are_made_for_the_chain_rule_only():
    def names(setup):
        return {row["name"] for row in judge(arm(world(4), setup, 8)).details["components"]}

    chain_only = {"drafted ~ q", "recovered ~ residual, by rank", "accepted ~ min(1, p / q)"}
    assert chain_only <= names(Setup())
    assert not chain_only & names(Setup(Protocol.GUMBEL, "soft"))


def test_few_tokens_are_no_certificate():
    result = judge(arm(world(4), Setup(), 4))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "fewer than 500" in result.summary


def test_tokens_too_few_for_any_test_are_no_certificate_and_no_error():
    result = judge(arm(world(4), Setup(sampling=replace(SAMPLED, max_new_tokens=2)), 1))
    assert (result.verdict, result.statistic, result.p_value) == (Verdict.INCONCLUSIVE, None, None)
    assert "no departure in 0 tests" in result.summary


@pytest.mark.medium
def test_a_wide_bound_is_no_certificate_and_names_what_could_be_seen():
    result = judge(arm(world(4), Setup(), 16), leak_margin=0.001)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "detectable leak" in result.summary
    assert result.details["leak"]["tv_detectable"] > 0.001


def test_shared_random_numbers_are_refused():
    one = arm(world(4), Setup(), 2)
    twice = replace(one, requests=(one.requests[0], replace(one.requests[0], request_id="again")))
    result = judge(twice)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "case-0 and again share seed and stream" in result.summary


def test_rows_are_needed():
    assert judge(arm(world(4), Setup(level=RecordLevel.SCALARS), 2)).verdict is Verdict.INCONCLUSIVE


def test_greedy_arms_have_no_law():
    greedy = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY)
    assert judge(arm(world(4), greedy, 1)).verdict is Verdict.NOT_RUN


@pytest.mark.slow
def test_the_leak_bound_covers_a_known_leak():
    """A tenth of the drafts accepted unseen is the leak r = 0.9 p + 0.1 q at drafted positions."""
    covered = 0
    for seed in range(10):
        requests = arm(world(2), seeded(Setup(fault="lenient"), seed), 12).requests
        leak = estimate_leak(tabulate(requests, np.random.default_rng(seed)).table)
        covered += leak.bound >= 0.1 * leak.effect / leak.share
    # one-sided 99 %: two misses of ten have probability 0.004
    assert covered >= 9


@pytest.mark.medium
def test_without_drafts_the_leak_is_towards_the_argmax():
    result = judge(arm(world(4), Setup(Protocol.GUMBEL, "none"), 16))
    assert result.details["leak"]["direction"] == "argmax of p"


def test_small_strata_are_left_out():
    made = LawSums()
    for request in request_by_request(arm(world(4), Setup(sampling=LENGTH_32), 1).requests, np.random.default_rng(1)):
        made.add(request)
    assert all(each.n >= 15 for each in battery(made, np.random.default_rng(1)))
    made.close()
