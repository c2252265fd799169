"""The arms of the self-test: sizes, seeds, and that the clean grid has a place for everything."""

from collections import Counter
from dataclasses import replace

import pytest

from audit.selftest.run_arm import gather
from audit.selftest.scenarios import FAMILIES, SAMPLINGS, clean_arms, recording_of, suite_of
from engine import faults
from engine.core.types import Protocol, SamplingParams
from engine.faults.interface import Scenario

CHAIN = Scenario(sampling=SamplingParams(temperature=1.0))
GREEDY = Scenario(Protocol.GREEDY, sampling=SamplingParams())


def requests(suite):
    return len(suite.cases) * suite.samples


@pytest.mark.parametrize("tokens", [256, 1024, 4096, 200_000])
@pytest.mark.parametrize("scenario", [CHAIN, GREEDY])
def test_an_arm_has_the_tokens_that_were_asked_for(scenario, tokens):
    suite = suite_of(scenario, None, 0, tokens, ("law",))
    assert tokens <= requests(suite) * 64 <= 1.02 * tokens


def test_a_sampled_arm_has_as_many_repetitions_as_prompts_and_a_greedy_one_has_one():
    assert (suite_of(CHAIN, None, 0, 4096, ()).samples, len(suite_of(CHAIN, None, 0, 4096, ()).cases)) == (8, 8)
    assert suite_of(GREEDY, None, 0, 4096, ()).samples == 1


def test_a_seed_fixes_models_prompts_and_numbers():
    first, again, other = (suite_of(CHAIN, None, seed, 1024, ()) for seed in (3, 3, 4))
    assert first == again
    assert first.models["target"] != other.models["target"]
    assert first.cases != other.cases
    assert first.seed != other.seed


def test_no_two_worlds_share_a_model():
    sources = [
        spec.source for seed in range(8) for spec in suite_of(Scenario(drafts=3), None, seed, 256, ()).models.values()
    ]
    assert len(set(sources)) == len(sources)


def test_bundled_models_answer_packaged_prompts_of_every_domain():
    scenario = replace(FAMILIES["early exit"], sampling=SAMPLINGS["T=1"])
    few, all_of_them = (suite_of(scenario, None, 0, 64 * count, ()) for count in (150, 600))
    assert (len(few.cases), few.samples) == (150, 1)
    assert (len(all_of_them.cases), all_of_them.samples) == (300, 2)
    assert len({case.domain for case in few.cases}) == 6


def test_the_clean_grid_goes_through_every_family_at_every_sampling():
    found = Counter((each.family, each.sampling) for each in clean_arms(1000))
    assert set(found) == {(family, sampling) for family in FAMILIES for sampling in SAMPLINGS}
    assert len({each.seed for each in clean_arms(1000)}) == 1000


@pytest.mark.medium
def test_the_clean_grid_has_grammars_filters_and_tools_at_every_sampling():
    arms = [suite_of(each.scenario, None, each.seed, 256, ()) for each in clean_arms(50)]
    grammars = [suite for suite in arms if suite.arms[0].sampling.structured]
    assert {suite.arms[0].sampling.temperature for suite in grammars} == {0.0, 0.7, 1.0}
    assert all(suite.arms[0].sampling.stop_token_ids for suite in grammars)
    assert any(suite.arms[0].stream and suite.arms[0].stream.filters for suite in arms)
    assert any(case.tools for suite in arms for case in suite.cases)


@pytest.mark.medium
def test_what_is_gathered_is_the_arm_with_its_baseline_and_companions():
    evidence = gather(suite_of(faults.load("greedy_accepts_top2").scenario, "greedy_accepts_top2", 0, 256, ("seed",)))
    assert evidence.candidate.effective.fault == "greedy_accepts_top2"
    assert [each.key for each in evidence.candidate.requests] == [each.key for each in evidence.baseline.requests]
    assert evidence.control is not None
    assert {"repeat", "alone", "reversed"} <= set(evidence.companions)


def test_a_recording_is_the_same_pair_without_the_fault_on_other_prompts():
    suite = suite_of(CHAIN, "sqrt_acceptance", 0, 1024, ("law",))
    trusted = recording_of(suite)
    assert (trusted.models, len(trusted.cases)) == (suite.models, len(suite.cases))
    assert trusted.arms[0].fault is None
    assert trusted.cases != suite.cases
    assert trusted.seed != suite.seed
