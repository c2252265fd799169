"""When a size is enough, when it is given up, and what a row remembers."""

import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.selftest import battery, detect
from audit.selftest.detect import DetectionLimits, ViewDetection
from audit.selftest.run_arm import alone, gather
from audit.selftest.scenarios import recording_of, suite_of
from engine import faults


def limits(**changes):
    return DetectionLimits(**({"seeds": 20, "record": 1024, "outside": 256} | changes))


@pytest.fixture
def told(monkeypatch):
    """Evidence is its own seed and size; the law check sees what `sees` says, the replay check nothing."""

    def install(sees):
        asked = []

        def results(evidence, listed, settings):
            seed, tokens = evidence
            verdicts = {"replay": Verdict.CERTIFIED, "law": Verdict.FAULT if sees(seed, tokens) else Verdict.CERTIFIED}
            return {name: CheckResult(each, "") for name, each in verdicts.items()}

        def gather(suite):
            asked.append(suite)
            return suite

        monkeypatch.setattr(detect, "suite_of", lambda scenario, fault, seed, tokens, checks: (seed, tokens))
        monkeypatch.setattr(detect, "gather", gather)
        monkeypatch.setattr(detect, "alone", lambda suite: suite)
        monkeypatch.setattr(detect, "recording_of", lambda suite: suite)
        monkeypatch.setattr(battery, "recorded", lambda trusted: {})
        monkeypatch.setattr(detect, "from_outside", lambda evidence, level: (0, 0))
        monkeypatch.setattr(battery, "results", results)
        return asked

    return install


def record(name, allowed):
    return detect.detect(name, allowed).sights["record"]


def test_the_first_size_with_eighteen_of_twenty_is_the_tokens_needed(told):
    told(lambda seed, tokens: tokens == 1024 and seed >= 2)
    found = record("sqrt_acceptance", limits())
    assert (found.caught, found.tokens, found.seeds, found.seen) == (True, 1024, 20, 18)
    assert (found.first, found.missed) == (("law",), ("replay",))


def test_seventeen_of_twenty_are_not_enough(told):
    told(lambda seed, tokens: seed >= 3 and tokens > 0)
    assert not record("sqrt_acceptance", limits()).caught


def test_a_size_is_given_up_after_the_third_miss(told):
    asked = told(lambda seed, tokens: False)
    found = record("sqrt_acceptance", limits())
    assert (found.caught, found.tokens, found.seeds, found.seen) == (False, 1024, 3, 0)
    assert asked == [(seed, tokens) for tokens in (256, 1024) for seed in range(3)]


def test_from_outside_a_size_is_given_up_after_two_misses_and_goes_on_after_a_hit(told, monkeypatch):
    counts = []
    for first in (0, 1):
        asked = told(lambda seed, tokens, first=first: seed >= first)
        monkeypatch.setattr(detect, "from_outside", lambda evidence, level: evidence)
        sights = detect.detect("sqrt_acceptance", limits(seeds=20, record=256)).sights
        counts.append((sights["text"].caught, sights["text"].seen, len(asked)))
    assert counts == [(True, 20, 20), (True, 19, 20)]
    asked = told(lambda seed, tokens: seed >= 2)
    monkeypatch.setattr(detect, "from_outside", lambda evidence, level: evidence)
    sights = detect.detect("sqrt_acceptance", limits(seeds=20, record=256)).sights
    assert (sights["record"].caught, sights["record"].seen) == (True, 18)
    assert (sights["text"].caught, sights["text"].seeds) == (False, 2)


def test_a_check_that_others_are_faster_than_is_tried_on_faults_of_its_claim(told):
    asked = told(lambda seed, tokens: tokens >= 1024)
    found = detect.seek("law", limits(seeds=4, record=4096))
    assert (found.tokens, found.seeds, found.seen) == (1024, 4, 4)
    assert faults.load(found.fault).breaks == "law"
    small = [each for each in asked if each[1] == 256]
    assert len(small) == 2 * sum(faults.load(name).breaks == "law" for name in faults.REGISTRY)
    told(lambda seed, tokens: False)
    assert detect.seek("law", limits(record=1024)) == detect.CheckDetection("law", None, 1024, 0, 0)


def test_a_larger_size_is_tried_only_for_the_views_that_need_it(told):
    asked = told(lambda seed, tokens: tokens > 0)
    found = detect.detect("sqrt_acceptance", limits(outside=1024)).sights
    assert (found["record"].tokens, found["text"].tokens) == (256, 1024)
    assert asked == [*((seed, 256) for seed in range(20)), *((seed, 1024) for seed in range(2))]


def test_checks_that_catch_some_seeds_are_told_apart_from_the_best():
    sight = ViewDetection(True, 256, 20, 20, {"replay": 20, "law": 4, "accounting": 0, "q_contract": 20})
    assert (sight.first, sight.others, sight.missed) == (("replay", "q_contract"), ("law",), ("accounting",))


def test_large_arms_over_models_with_weights_are_judged_by_the_checks_of_the_broken_claim():
    heavy, light = faults.load("wrong_aux_layers"), faults.load("sqrt_acceptance")
    assert detect._listed(heavy, 1024, Level.L4) == detect._listed(light, 65_536, Level.L4) == battery.names()
    assert detect._listed(heavy, 4096, Level.L4) == ("acceptance_drift", "acceptance_theory")
    assert limits(record=4096).allow("record", 4096, heavy)
    assert not limits(record=4096, outside=4096).allow("text", 4096, heavy)


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(battery.OF_OTHER_ENGINES))
def test_a_check_of_other_engines_has_nothing_to_judge_here_and_is_not_sought(name):
    found = gather(suite_of(faults.load("noise_keyed_by_draw").scenario, None, 0, 256, (name,)))
    assert battery.results(found, (name,), {}) == {}
    assert name not in battery.names()
    assert name not in battery.uncaught(())


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(detect.ALONE))
def test_checks_of_the_candidate_alone_say_the_same_with_and_without_a_baseline(name):
    suite = suite_of(faults.load("sqrt_acceptance").scenario, "sqrt_acceptance", 0, 256, (name,))
    whole, bare = (battery.results(made(suite), (name,), {}) for made in (gather, alone))
    assert whole == bare
    assert set(detect._listed(faults.load("wrong_aux_layers"), 4096, Level.L4)) <= detect.ALONE


def test_a_fault_of_the_record_is_looked_for_in_text_only_briefly(told):
    told(lambda seed, tokens: tokens > 0)
    allowed = limits(record=4096, outside=4096)
    assert detect.detect("uniforms_of_24_bits", allowed).sights["text"].tokens == 1024
    assert detect.detect("sqrt_acceptance", allowed).sights["text"].tokens == 4096


@pytest.mark.slow
def test_a_gross_fault_is_caught_by_many_checks_and_one_of_lengths_by_one():
    small = limits(seeds=2, record=256)
    gross, short = record("argmax_draft_soft_q", small), record("gamma_not_respected", small)
    assert gross.caught
    assert {"replay", "q_contract"} <= set(gross.first)
    assert short.caught
    assert "accounting" in short.first
    assert not short.hits["replay"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["drafts_of_another_request", None])
def test_worse_drafts_are_seen_beside_the_acceptance_that_was_recorded(fault):
    suite = suite_of(faults.load("drafts_of_another_request").scenario, fault, 0, 4096, ())
    settings = battery.recorded(gather(recording_of(suite)))
    found = battery.results(gather(suite), (battery.DRIFT,), settings)[battery.DRIFT]
    assert (found.verdict is Verdict.FAULT) == (fault is not None), found.summary
