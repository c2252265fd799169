import functools
from dataclasses import replace

import numpy as np
import pytest

from audit.checks import performance
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from tests.audit.checks.reruns import arena_evidence
from tests.audit.checks.simulator import Setup, arm, world
from tests.support.tiers import fast_first

TARGET = world(6)


@functools.cache
def candidate():
    return arm(TARGET, Setup(), 24)


@functools.cache
def baseline():
    return arm(TARGET, Setup(draft="none"), 24, kind=ArmKind.BASELINE)


def timed(made, rng, scale=1.0):
    """Seconds by prompt, the same difficulty in both arms, with noise of a tenth."""
    difficulty = np.random.default_rng(0).lognormal(0, 0.5, len(made.requests))
    requests = tuple(
        replace(each, latency_us=int(1e6 * scale * hard * rng.lognormal(0, 0.1)))
        for each, hard in zip(made.requests, difficulty, strict=True)
    )
    return replace(made, requests=requests)


def evidence(seed, gain=2.0, prompts=24):
    rng = np.random.default_rng(seed)
    cut = [replace(each, requests=each.requests[:prompts]) for each in (candidate(), baseline())]
    return Evidence(timed(cut[0], rng, 1 / gain), timed(cut[1], rng))


def verdict(found, **params):
    return evaluate(performance.CHECK, found, params)


def test_without_a_margin_it_is_measured_and_nothing_is_certified():
    result = verdict(evidence(1))
    assert result.verdict is Verdict.NOT_RUN
    assert "measured, no margin required" in result.summary
    assert "load is not known" in result.summary
    assert result.details["speed_up"]["low"] < 2.0 < result.details["speed_up"]["high"]
    steps = sum(each.trace.steps for each in candidate().requests)
    assert result.details["tokens_per_forward"]["estimate"] == pytest.approx(24 * 64 / steps)
    assert result.details["candidate_p99_seconds"]["high"] is None


def test_a_margin_is_certified_missed_or_open():
    assert verdict(evidence(1), min_speedup=1.5).verdict is Verdict.CERTIFIED
    slow = verdict(evidence(1), min_speedup=2.6)
    assert slow.verdict is Verdict.FAULT
    assert "required 2.6" in slow.findings[0].message
    assert verdict(evidence(1), min_speedup=2.0).verdict is Verdict.INCONCLUSIVE
    assert verdict(evidence(1, prompts=1), min_speedup=1.5).verdict is Verdict.INCONCLUSIVE


def test_tokens_per_forward_are_judged_without_a_clock():
    told = verdict(evidence(1)).details["tokens_per_forward"]
    asked = [verdict(evidence(1), min_tokens_per_forward=told[end] * by) for end, by in (("low", 0.9), ("high", 1.1))]
    assert [each.verdict for each in asked] == [Verdict.CERTIFIED, Verdict.FAULT]
    assert "tokens per forward" in asked[1].findings[0].message
    assert verdict(evidence(1), min_tokens_per_forward=told["estimate"]).verdict is Verdict.INCONCLUSIVE
    again = verdict(evidence(2), min_tokens_per_forward=told["high"] * 1.1)
    assert again.findings[0].message == asked[1].findings[0].message, "other times, the same tokens"


@pytest.mark.slow
def test_at_the_margin_itself_it_errs_rarely():
    """300 pairs of arms whose true gain is the margin: 1 % each way, measured within Monte Carlo error."""
    verdicts = [verdict(evidence(seed), min_speedup=2.0).verdict for seed in range(300)]
    assert verdicts.count(Verdict.FAULT) <= 8
    assert verdicts.count(Verdict.CERTIFIED) <= 8


def test_a_tail_needs_many_prompts():
    assert verdict(evidence(1), max_p99_ratio=1.0).verdict is Verdict.INCONCLUSIVE
    many = [replace(each, case_id=f"c{i}") for i, each in enumerate(candidate().requests * 60)]
    rng = np.random.default_rng(3)
    arms = []
    for scale in (0.5, 1.0):
        requests = [replace(each, latency_us=int(1e6 * scale * rng.lognormal(0, 0.2))) for each in many]
        arms.append(replace(candidate(), requests=tuple(requests)))
    assert verdict(Evidence(*arms), max_p99_ratio=0.8).verdict is Verdict.CERTIFIED
    assert verdict(Evidence(*arms), max_p99_ratio=0.2).verdict is Verdict.FAULT
    assert verdict(Evidence(*arms), max_p99_ratio=0.8, min_speedup=3.0).verdict is Verdict.FAULT


def test_no_baseline_no_case_and_no_time():
    assert verdict(Evidence(candidate())).verdict is Verdict.NOT_RUN
    other = tuple(replace(each, case_id=f"x{i}") for i, each in enumerate(baseline().requests))
    assert verdict(Evidence(candidate(), replace(baseline(), requests=other))).verdict is Verdict.INCONCLUSIVE
    stopped = (replace(baseline().requests[0], latency_us=0), *baseline().requests[1:])
    assert verdict(Evidence(candidate(), replace(baseline(), requests=stopped))).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
@pytest.mark.parametrize("name", fast_first(["bonus_dropped", "gamma_not_respected"]))
def test_faults_that_cost_speed_show_in_tokens_per_forward(name):
    broken, clean = (verdict(arena_evidence(name, 6, broken=each, kinds=())) for each in (True, False))
    lengths = [each.details["tokens_per_forward"]["estimate"] for each in (broken, clean)]
    assert lengths[0] < lengths[1] - 0.05
