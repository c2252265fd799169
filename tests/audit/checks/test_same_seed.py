from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.checks.same_seed import SeedComparison, higher_rate
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, world
from tests.support.served import served, served_arm

PLAIN = Setup(Protocol.GUMBEL, "none", sampling=replace(SAMPLED, max_new_tokens=32))
MATCHED = replace(PLAIN, draft="coupled")


@pytest.fixture(scope="module")
def arms():
    """Plain sampling at an endpoint, and sample-and-match under the same seeds: 32 requests of 32 tokens."""
    there = world(3)
    baseline = served_arm(arm(there, PLAIN, 32, kind=ArmKind.BASELINE))
    return served_arm(arm(there, MATCHED, 32)), baseline


def parted(record, requests, rng):
    """The arm with one wrong token in each of the first requests."""

    def changed(request):
        at = int(rng.integers(len(request.tokens)))
        other = (request.tokens[at] + 1) % request.trace.header.vocabulary
        return served(request, (*request.tokens[:at], other, *request.tokens[at + 1 :]))

    some = tuple(changed(each) if i < requests else each for i, each in enumerate(record.requests))
    return replace(record, requests=some)


def judge(candidate, baseline, *controls):
    return evaluate(load("same_seed"), Evidence(candidate, baseline, noise=controls), {})


def test_an_engine_that_samples_and_matches_gives_the_baselines_tokens(arms):
    candidate, baseline = arms
    result = judge(candidate, baseline, baseline)
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert (result.n, result.statistic) == (1024, 0)
    assert result.bound <= result.margin


def test_more_divergences_than_repetitions_have_are_a_fault(arms):
    candidate, baseline = arms
    broken = parted(candidate, 12, np.random.default_rng(1))
    result = judge(broken, baseline, baseline, baseline)
    assert result.verdict is Verdict.FAULT, result.summary
    assert "under the same seed the baseline has" in result.findings[0].message


def test_as_many_near_ties_as_the_baselines_own_are_no_fault(arms):
    candidate, baseline = arms
    rng = np.random.default_rng(2)
    noisy = [parted(baseline, 6, rng) for _ in range(2)]
    assert judge(parted(candidate, 6, rng), baseline, *noisy).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
def test_without_repetitions_or_with_broken_seeds_it_decides_nothing(arms):
    candidate, baseline = arms
    rng = np.random.default_rng(3)
    alone = judge(parted(candidate, 3, rng), baseline)
    assert "without a repetition of the baseline" in alone.summary
    unseeded = served_arm(arm(world(3), replace(PLAIN, sampling=replace(PLAIN.sampling, seed=9)), 32))
    result = judge(unseeded, baseline, unseeded)
    assert result.verdict is Verdict.INCONCLUSIVE
    other = replace(baseline, requests=tuple(replace(each, trace=each.trace) for each in baseline.requests))
    broken = judge(other, baseline, parted(baseline, 32, rng), parted(baseline, 32, rng))
    assert "does not repeat itself under its seeds" in broken.summary


def test_it_is_about_sampled_arms_of_other_engines_that_promise_shared_numbers(arms):
    candidate, baseline = arms
    chain = served_arm(arm(world(3), Setup(sampling=PLAIN.sampling), 2))
    greedy = served_arm(arm(world(3), Setup(Protocol.GUMBEL, "none", sampling=GREEDY), 2))
    own = arm(world(3), MATCHED, 2)
    for other in (chain, greedy, own):
        assert judge(other, baseline).verdict is Verdict.NOT_RUN
    assert evaluate(load("coupled_equality"), Evidence(candidate, baseline), {}).summary.endswith("see same_seed")


def test_two_equal_rates_are_told_apart_no_more_often_than_the_level():
    """2000 pairs of arms with the same rate at level 0.05: inside the 99.9 % binomial band."""
    rng = np.random.default_rng(4)
    ours, noise = rng.binomial(1000, 0.01, 2000), rng.binomial(3000, 0.01, 2000)
    values = [
        higher_rate(SeedComparison((None,) * a, 1000), SeedComparison((None,) * b, 3000))
        for a, b in zip(ours, noise, strict=True)
    ]
    assert np.count_nonzero(np.array(values) < 0.05) <= binom.ppf(0.999, 2000, 0.05)
