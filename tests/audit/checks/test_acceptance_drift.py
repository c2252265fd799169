import functools
from dataclasses import replace

import numpy as np
import pytest

from audit.checks import acceptance_drift
from audit.checks.base.interface import evaluate
from audit.errors import UserError
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import Verdict
from audit.stats.clusters import ratio_interval
from tests.audit.checks.simulator import GREEDY, Protocol, Setup, arm, world

TARGET = world(6)


@functools.cache
def rate():
    """The rate of a longer run before."""
    steps = acceptance_drift.steps(arm(TARGET, Setup(), 96, tag="before").requests)
    old = ratio_interval(steps.accepted, steps.drafted, steps.prompt)
    return {"rate": old.estimate, "low": old.low, "high": old.high}


@functools.cache
def now():
    return Evidence(arm(TARGET, Setup(), 48, tag="now"))


def verdict(evidence, **params):
    return evaluate(acceptance_drift.CHECK, evidence, params)


def test_the_rate_of_before_is_certified_and_without_one_nothing_is():
    result = verdict(now(), expected={"all": rate()}, margin=0.1)
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.details["watched_positions"] > 500
    bare = verdict(now())
    assert bare.verdict is Verdict.NOT_RUN
    assert {"all", "domain chat", "domain code", "context 0 to 63"} <= set(bare.details["rates"])


@pytest.mark.medium
def test_another_draft_is_a_fault_and_a_few_requests_are_inconclusive():
    other = Evidence(arm(world(6, drift=2.5), Setup(), 48))
    result = verdict(other, expected={"all": rate()})
    assert result.verdict is Verdict.FAULT, result.summary
    assert result.effect > 0.1
    few = verdict(Evidence(arm(TARGET, Setup(), 3, tag="now")), expected={"all": rate()})
    assert few.verdict is Verdict.INCONCLUSIVE
    assert few.detectable > 0.05


@pytest.mark.slow
def test_clean_arms_are_no_fault():
    for seed in range(20):
        found = verdict(Evidence(arm(TARGET, Setup(), 12, tag=f"clean{seed}")), expected={"all": rate()})
        assert found.verdict is not Verdict.FAULT, found.summary


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["sqrt", "argmax_draft"])
def test_acceptance_that_leaves_p_and_q_in_the_run_is_found_and_placed(fault):
    broken = arm(TARGET, Setup(fault=fault), 48, tag="broken")
    late = replace(broken, requests=(*now().candidate.requests[:24], *broken.requests))
    result = verdict(Evidence(late))
    assert result.verdict is Verdict.FAULT, result.summary
    assert result.findings[0].request.startswith("broken")


def test_strata_are_compared_by_name_and_absent_ones_are_told():
    result = verdict(now(), expected={"domain chat": rate(), "domain law": rate()}, margin=0.15)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "recorded but not seen: domain law" in result.summary


def test_text_level_and_greedy_arms_are_compared_with_the_record_only():
    low = Evidence(replace(now().candidate, level=Level.L0))
    assert verdict(low, expected={"all": rate()}, margin=0.1).verdict is Verdict.CERTIFIED
    assert "not watched" in verdict(low, expected={"all": rate()}).summary
    greedy = Evidence(arm(TARGET, Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), 4))
    assert verdict(greedy).verdict is Verdict.NOT_RUN
    assert verdict(Evidence(arm(TARGET, Setup(draft="none"), 2))).verdict is Verdict.NOT_RUN


def test_the_rate_counts_drafted_and_accepted_tokens():
    found = acceptance_drift.steps(now().candidate.requests)
    assert found.accepted.sum() == sum(each.trace.n_accepted for each in now().candidate.requests)
    assert found.drafted.sum() == sum(int(np.sum(each.trace.n_drafted)) for each in now().candidate.requests)


def by_domain(share, drop, generator, clusters=12):
    """Steps of two domains, of which 0.2 and 0.8 of the drafts are accepted, less `drop`; `share` in the first."""
    parts = []
    for name, centre, count in (("a", 0.2, share), ("b", 0.8, 1 - share)):
        prompts = round(2 * clusters * count)
        rates = np.repeat(centre - drop + 0.04 * generator.standard_normal(prompts), 20)
        parts.append((name, generator.binomial(4, np.clip(rates, 0, 1)), np.arange(20 * prompts) // 20))
    names = np.concatenate([np.full(len(accepted), name) for name, accepted, _ in parts])
    return acceptance_drift.DraftSteps(
        drafted=np.full(len(names), 4.0),
        accepted=np.concatenate([accepted for _, accepted, _ in parts]).astype(float),
        bucket=np.zeros(len(names), dtype=np.int64),
        domain=names,
        prompt=np.concatenate([parts[0][2], 1000 + parts[1][2]]),
    )


def alike(monkeypatch, before, after):
    """The strata of a run against all rates that another run recorded."""
    monkeypatch.setattr(acceptance_drift, "steps", lambda requests: before)
    rates = verdict(now()).details["rates"]
    told = {
        name: {key: each[key] for key in ("rate", "low", "high")} | {"confidence": 0.98} for name, each in rates.items()
    }
    monkeypatch.setattr(acceptance_drift, "steps", lambda requests: after)
    return verdict(now(), expected={name: each for name, each in told.items() if not name.startswith("context")})


def test_domains_that_count_alike_show_a_change_that_their_mix_hides(monkeypatch):
    generator = np.random.default_rng(2)
    before, now = by_domain(0.5, 0.0, generator), by_domain(0.5, 0.12, generator)
    found = alike(monkeypatch, before, now)
    assert found.verdict is Verdict.FAULT
    assert [each.message.partition(":")[0] for each in found.findings] == ["domains alike"]
    assert found.details["changes"]["domains alike"] == pytest.approx(-0.12, abs=0.03)


def test_another_mix_of_the_same_domains_moves_all_and_not_their_mean(monkeypatch):
    generator = np.random.default_rng(3)
    found = alike(monkeypatch, by_domain(0.5, 0.0, generator), by_domain(0.75, 0.0, generator))
    assert found.details["changes"]["all"] < -0.1
    assert abs(found.details["changes"]["domains alike"]) < 0.04


@pytest.mark.slow
def test_domains_without_a_change_are_seldom_called_a_fault(monkeypatch):
    generator = np.random.default_rng(4)
    runs = [alike(monkeypatch, by_domain(0.5, 0.0, generator), by_domain(0.5, 0.05, generator)) for _ in range(60)]
    # at the margin itself, where one in 2000 is due by chance
    assert sum(each.verdict is Verdict.FAULT for each in runs) <= 1


@pytest.mark.medium
def test_one_recorded_domain_or_an_absent_one_makes_no_mean():
    for expected in ({"domain chat": rate()}, {"domain chat": rate(), "domain law": rate()}):
        assert "domains alike" not in verdict(now(), expected=expected, margin=0.15).details["changes"]
    assert "domains alike" in verdict(now(), expected={"domain chat": rate(), "domain code": rate()}).details["changes"]


@pytest.mark.parametrize("entry", [0.5, {"rate": 0.5}, {"rate": 0.5, "low": 0.6, "high": 0.7}])
def test_a_wrong_record_is_a_users_error(entry):
    with pytest.raises(UserError, match=r"acceptance_drift: expected\.all"):
        verdict(now(), expected={"all": entry})
