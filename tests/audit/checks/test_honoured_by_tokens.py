"""Tokens of an engine that ignores a parameter are never a pass, but for the stated 1 %; those of a right one are."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.checks.honoured.by_tokens import law_pairs
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import RecordLevel, SamplingParams
from engine.record.columns import TOP
from engine.record.effective import Effective
from engine.sampling.transforms import transform
from tests.audit.checks.anchor_arms import anchor_arm, beside_the_target, world_reference
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, world
from tests.support.served import served

CHECK = load("honoured_by_tokens")
ASKED = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": 0.3},
    "logit_bias": {"logit_bias": ((3, 4.0),)},
    "bad_words": {"bad_words": ((4,), (7,))},
}
EXCLUDING = ("top_k", "top_p", "min_p", "bad_words")
"""An engine that ignores one of these emits impossible tokens, which `token_law` judges."""
OF_SCORES = ("temperature", "top_k", "top_p", "min_p")


def tokens_of(made, sampling, count, seed):
    """`count` tokens drawn from the world's rows under some parameters, by numbers of the test's own."""
    generator, history = np.random.default_rng(seed), [1, 2]
    for _ in range(count):
        p = transform(made.target[history[-1]], history, 2, sampling, ()).p
        history.append(int(generator.choice(len(p), p=p / p.sum())))
    return tuple(history[2:])


def evidence(asked, used, seed, level=RecordLevel.FULL, requests=8, tokens=64, sharpness=1.5):
    """Requests that ask for some parameters, answered by an engine that uses others."""
    made = world(seed, sharpness=sharpness)
    samplings = [replace(asked, seed=seed * 1000 + number, max_new_tokens=tokens) for number in range(requests)]
    template = arm(made, Setup(draft="none", sampling=replace(SAMPLED, max_new_tokens=1)), requests).requests
    answered = []
    for number, (request, sampling) in enumerate(zip(template, samplings, strict=True)):
        header = replace(request.trace.header, sampling=sampling)
        drawn = tokens_of(made, used, tokens, [seed, number])
        answered.append(served(replace(request, trace=replace(request.trace, header=header)), drawn))
    return beside_the_target(answered, made, level)


def judged(name, ignores, seed, **settings):
    asked = replace(SAMPLED, **ASKED[name])
    return evaluate(CHECK, evidence(asked, SAMPLED if ignores else asked, seed, **settings), {})


@pytest.mark.medium
@pytest.mark.parametrize("name", ASKED)
def test_a_parameter_is_shown_by_the_tokens_of_a_right_engine_and_found_to_be_ignored_by_another(name):
    right, wrong = judged(name, False, 3), judged(name, True, 3)
    assert right.verdict is Verdict.CERTIFIED, right.summary
    assert right.summary == f"the tokens speak for {name}"
    if name in EXCLUDING:
        assert wrong.verdict is Verdict.INCONCLUSIVE, wrong.summary
        return
    assert wrong.verdict is Verdict.FAULT, wrong.summary
    assert wrong.findings[0].message.startswith(f"as if {name} were not set")


@pytest.mark.medium
@pytest.mark.parametrize("name", OF_SCORES)
def test_the_largest_scores_are_enough_for_parameters_of_the_scores(name):
    right, wrong = (judged(name, ignores, 5, level=RecordLevel.TOPK) for ignores in (False, True))
    assert right.verdict is Verdict.CERTIFIED, right.summary
    assert wrong.verdict is Verdict.INCONCLUSIVE, wrong.summary


@pytest.mark.medium
def test_an_engine_that_ignores_a_parameter_is_certified_in_at_most_one_of_a_hundred_arms():
    """100 arms of 48 tokens, where evidence is weak: 6 certified ones have probability 5e-4 at the stated rate."""
    wrong = [judged("temperature", True, seed, requests=2, tokens=24, sharpness=0.7) for seed in range(100)]
    assert sum(result.verdict is Verdict.CERTIFIED for result in wrong) < 6


@pytest.mark.medium
def test_a_right_engine_is_accused_in_no_arm():
    """200 arms at an error probability of 0.001: 3 false alarms have probability 1e-3."""
    right = [judged("temperature", False, seed, requests=2, tokens=24) for seed in range(200)]
    assert sum(result.verdict is Verdict.FAULT for result in right) < 3


@pytest.mark.medium
def test_a_parameter_that_changes_next_to_nothing_is_no_question():
    asked = replace(SAMPLED, temperature=0.999)
    result = evaluate(CHECK, evidence(asked, SAMPLED, 3), {})
    assert result.verdict is Verdict.CERTIFIED
    assert result.details["parameters"]["temperature"]["mean_distance"] < 0.002
    few = evaluate(CHECK, evidence(replace(SAMPLED, temperature=0.9), SAMPLED, 3, requests=1, tokens=16), {})
    assert few.verdict is Verdict.INCONCLUSIVE
    assert few.summary.startswith("temperature: 16 tokens do not tell whether it was ignored, ")


def test_the_other_arms_of_the_claim():
    greedy = arm(world(1), Setup(sampling=replace(GREEDY, max_new_tokens=2)), 1)
    assert evaluate(CHECK, Evidence(greedy), {}).verdict is Verdict.NOT_RUN
    off = evaluate(CHECK, evidence(SAMPLED, SAMPLED, 3, requests=1, tokens=2), {})
    assert (off.verdict, off.summary) == (Verdict.CERTIFIED, "no sampling parameter is on")
    asked = replace(SAMPLED, repetition_penalty=1.5)
    listed = evaluate(CHECK, evidence(asked, asked, 3, RecordLevel.TOPK, requests=1, tokens=4), {})
    assert (listed.verdict, listed.summary) == (
        Verdict.INCONCLUSIVE,
        "repetition_penalty: the rows on record do not give the law without it; set record: full",
    )


@pytest.mark.medium
@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.7},
        {"temperature": 1.4},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.4, "top_p": 0.999, "min_p": 0.001},
        {"top_k": 5, "top_p": 0.8},
        {"top_k": TOP + 9},
        {"temperature": 0.8, "min_p": 0.02, "logit_bias": ((3, 2.0),)},
    ],
)
@pytest.mark.parametrize("hidden", [False, True])
def test_lists_speak_no_louder_for_a_parameter_than_whole_rows(asked, hidden):
    """A vocabulary of which the list holds a part."""
    made = world(2, vocabulary=4 * TOP, sharpness=0.8)
    sampling = SamplingParams(max_new_tokens=60, seed=3, **{"temperature": 1.0, **asked})
    request = arm(made, Setup(draft="none", sampling=sampling, eos=(5,)), 1).requests[0]
    arms = [ArmRecord("one", ArmKind.CANDIDATE, Level.L0, Effective(), (request,))] * 2
    whole, listed = (
        anchor_arm(one, world_reference(made), level).requests[0].trace
        for one, level in zip(arms, (RecordLevel.FULL, RecordLevel.TOPK), strict=True)
    )
    names = [name for name in asked if name in OF_SCORES]
    for index in range(len(request.tokens)):
        if hidden and request.tokens[index] == 5:
            continue
        exact, bounded = (law_pairs(trace, index, names, hidden) for trace in (whole, listed))
        for name in names:
            assert bounded[name].speaks_for <= exact[name].speaks_for + 1e-9, (name, index)
