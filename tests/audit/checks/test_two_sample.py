from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from audit.checks import two_sample
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from audit.stats.two_sample import matched_p
from engine.core.types import Protocol
from tests.audit.checks.engine_arms import plan
from tests.audit.checks.reruns import engine_evidence
from tests.audit.checks.simulator import GREEDY, SAMPLED, Decoder, Laws, Setup, arm, record, world
from tests.support.tiers import fast_first

TARGET = world(6)
SHORT = replace(SAMPLED, max_new_tokens=16)
CHAIN, PLAIN = Setup(sampling=SHORT), Setup(Protocol.GUMBEL, "none", sampling=SHORT)


def sampled(setup, prompts, samples, tag="a", kind=ArmKind.CANDIDATE):
    """An arm with several answers to every prompt; the prompts are the same, the streams are not."""
    laws, records = Laws.of(TARGET, setup.sampling), []
    for prompt in range(prompts):
        for sample in range(samples):
            made = record(Decoder(TARGET, setup, f"{tag}{prompt}#{sample}", laws).run())
            records.append(replace(made, case_id=f"p{prompt:02d}", sample=sample))
    return replace(arm(TARGET, setup, 0, kind=kind), requests=tuple(records))


def evidence(prompts=8, samples=8, fault="", tag="a"):
    """The candidate and its baseline draw from the same seed and streams, as a suite's arms do."""
    return Evidence(
        sampled(replace(CHAIN, fault=fault), prompts, samples, tag),
        sampled(PLAIN, prompts, samples, tag, ArmKind.BASELINE),
    )


def verdict(found, **params):
    return evaluate(two_sample.CHECK, found, params)


@pytest.mark.slow
def test_a_chain_and_its_baseline_are_independent_though_they_share_their_streams():
    """p-values over 60 clean pairs of arms are uniform or larger: purposes do not share numbers."""
    samples = [two_sample.gather(evidence(4, 5, tag=f"s{i}-")) for i in range(60)]
    assert all(two_sample.same_numbers(each, claimed=True) is None for each in samples)
    runs = [two_sample.permuted(each, 199) for each in samples]
    for name in two_sample.TESTS:
        p = np.array([run[name].p for run in runs])
        assert kstest(p, "uniform", alternative="greater").pvalue > 0.005, name
        assert np.mean(p < 0.05) < 0.15, name


@pytest.mark.medium
def test_coupled_arms_are_refused():
    coupled = sampled(Setup(Protocol.GUMBEL, "coupled", sampling=SHORT), 3, 3)
    assert verdict(Evidence(coupled, sampled(PLAIN, 3, 3))).verdict is Verdict.NOT_RUN
    other = sampled(PLAIN, 3, 3, tag="other")
    assert verdict(Evidence(coupled, other), permutations=99).verdict is not Verdict.NOT_RUN
    greedy = arm(TARGET, Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), 2)
    assert verdict(Evidence(greedy, greedy)).verdict is Verdict.NOT_RUN
    assert verdict(Evidence(coupled)).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_clean_arms_are_no_fault_and_a_certificate_is_of_features_only():
    result = verdict(evidence(12, 16), margin=0.2)
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert "no certificate of the law" in result.summary
    assert result.bound <= 0.2
    few = verdict(evidence(12, 2))
    assert few.verdict is Verdict.INCONCLUSIVE
    assert few.detectable > 0.05


@pytest.mark.medium
@pytest.mark.parametrize(("prompts", "samples"), [(13, 2), (8, 6), (8, 2)])
def test_arms_that_are_equal_by_seed_are_no_independent_samples(prompts, samples):
    """A server that keeps its seeds answers as the baseline does; that says nothing about a law."""
    baseline = sampled(PLAIN, prompts, samples, kind=ArmKind.BASELINE)
    other = Setup(sampling=SHORT).protocol
    requests = tuple(
        replace(each, trace=replace(each.trace, header=replace(each.trace.header, protocol=other)))
        for each in baseline.requests
    )
    result = verdict(Evidence(replace(baseline, requests=requests), baseline), permutations=99)
    assert result.verdict is Verdict.INCONCLUSIVE
    pairs = prompts * samples
    assert f"{pairs} of {pairs} answers equal the baseline's of the same seed" in result.summary
    assert ("too few to tell" in result.summary) is (pairs == 16)


def agreements(chance, prompts, samples, followed):
    """Lengths of common beginnings, geometric; a `followed` share of the answers runs on with its partner's."""
    blocks = chance.geometric(0.4, (prompts, samples, samples)).astype(float)
    partners = np.arange(samples)
    blocks[:, partners, partners] += 12.0 * (chance.random((prompts, samples)) < followed)
    return list(blocks)


@pytest.mark.medium
def test_independent_arms_are_told_from_arms_that_share_four_numbers_in_ten():
    """At a rate of 0.0002 each, 3,000 clean pairs have more than four alarms with a probability of 0.0004."""
    chance = np.random.default_rng(7)
    clean = [matched_p(agreements(chance, 8, 6, 0.0), chance) <= two_sample.SAME for _ in range(3000)]
    assert sum(clean) <= 4
    shared = [matched_p(agreements(chance, 8, 6, 0.4), chance) <= two_sample.SAME for _ in range(40)]
    assert all(shared)


def test_answers_that_cannot_differ_show_no_shared_numbers():
    blocks = [np.full((3, 3), 5.0)] * 8
    assert matched_p(blocks, np.random.default_rng(0)) == 1.0


@pytest.mark.slow
def test_a_gross_fault_is_seen_from_tokens_alone_and_a_smaller_one_is_not():
    result = verdict(evidence(8, 24, fault="argmax_draft"))
    assert result.verdict is Verdict.FAULT, result.summary
    assert result.p_value < 0.001
    assert verdict(evidence(8, 24, fault="wrong_bonus_row")).verdict is not Verdict.FAULT


def test_single_answers_and_shared_streams_are_inconclusive():
    assert "raise the suite's `samples`" in verdict(evidence(4, 1)).summary
    found = evidence(2, 3)
    twice = replace(found.candidate, requests=(*found.candidate.requests, found.candidate.requests[0]))
    assert verdict(replace(found, candidate=twice)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("fault", fast_first(["accepts_everything", None, "argmax_draft_soft_q"]))
@pytest.mark.slow
def test_the_engine_passes_and_faults_of_its_catalogue_do_not(fault):
    options = {"sampling": replace(SAMPLED, max_new_tokens=16), "requests": 3, "samples": 60, "kinds": ()}
    result = verdict(engine_evidence(plan(fault=fault), **options))
    assert (result.verdict is Verdict.FAULT) is (fault is not None), result.summary
