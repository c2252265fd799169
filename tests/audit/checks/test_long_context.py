"""Long context: each bucket is judged by itself, whatever happens at other lengths."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from scipy.stats import binom

from audit.checks.base.interface import evaluate
from audit.checks.long_context.check import CHECK
from audit.checks.long_context.measures import buckets_up_to
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import Effective
from tests.audit.checks.simulator import GREEDY, SAMPLED, Decoder, Laws, Setup, record, world

CHAIN = Setup()
COLD = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY)
COUPLED = Setup(Protocol.GUMBEL, "coupled")
LENGTHS = (2, 70, 140)
"""Prompts: answers of 50 tokens lie in one bucket each, apart from a few."""
MAXIMUM = {"maximum": 192, "slack": 2}
"""The parameters under which these lengths are all there are."""


def answered(setup, length, requests, seed):
    """Records of answers behind a prompt of this length."""
    setup = replace(setup, sampling=replace(setup.sampling, max_new_tokens=50))
    source = world(seed)
    laws = Laws.of(source, setup.sampling)
    for index in range(requests):
        decoder = Decoder(source, setup, f"at{length}-{index}", laws)
        decoder.history = [1] * (length - 1) + [2]
        yield record(decoder.run())


def by_length(setups, requests, seed=4, kind=ArmKind.CANDIDATE):
    """An arm with a setup for each of the lengths."""
    parts = zip(setups, LENGTHS, strict=True)
    records = tuple(each for setup, length in parts for each in answered(setup, length, requests, seed))
    return ArmRecord(kind.value, kind, Level.L4, Effective(), records)


@cache
def evidence(setup, fault="", places=(), requests=10):
    """The candidate, with a fault at some of the lengths, its baseline and a control."""
    setups = [replace(setup, fault=fault if at in places else "") for at in range(len(LENGTHS))]
    candidate = by_length(setups, requests)
    if setup.protocol is Protocol.CHAIN:
        return Evidence(candidate)
    plain = replace(setup, draft="none")
    noisy = replace(plain, noise=1e-4, noise_seed=1)
    baseline, control = (
        by_length([each] * len(LENGTHS), requests, kind=kind)
        for each, kind in ((plain, ArmKind.BASELINE), (noisy, ArmKind.CONTROL))
    )
    return Evidence(candidate, baseline, control)


def judge(found, **params):
    return evaluate(CHECK, found, {**MAXIMUM, **params})


def verdicts(result):
    return {row["context"]: row["verdict"] for row in result.details["buckets"]}


def test_buckets_double_up_to_the_maximum():
    assert [each.name for each in buckets_up_to(1024)] == ["0-63", "64-127", "128-255", "256-511", "512-1023"]
    assert [each.name for each in buckets_up_to(700)] == ["0-63", "64-127", "128-255", "256-511", "512-699"]
    assert [each.name for each in buckets_up_to(30)] == ["0-29"]


@pytest.mark.medium
@pytest.mark.parametrize("setup", [CHAIN, COLD, COUPLED], ids=["chain", "greedy", "gumbel"])
def test_a_clean_engine_is_certified_at_every_length(setup):
    result = judge(evidence(setup))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert verdicts(result) == {"0-63": "certified", "64-127": "certified", "128-191": "certified"}
    assert result.bound <= result.margin


@pytest.mark.medium
@pytest.mark.parametrize(
    ("setup", "fault", "requests"),
    [(COUPLED, "unverified", 10), (CHAIN, "sqrt", 30), (CHAIN, "from_p", 30)],
    ids=["equality", "acceptance", "law"],
)
def test_a_fault_of_long_contexts_is_found_there_and_nowhere_else(setup, fault, requests):
    result = judge(evidence(setup, fault, places=(2,), requests=requests))
    assert result.verdict is Verdict.FAULT, result.summary
    assert verdicts(result) == {"0-63": "certified", "64-127": "certified", "128-191": "fault"}
    assert "wrong at contexts of 128-191 tokens; as they should be at 0-63, 64-127" in result.summary
    assert all("128-191" in each.message or "at context 1" in each.message for each in result.findings)


@pytest.mark.medium
def test_a_bucket_with_too_few_tokens_is_undecided():
    found = evidence(CHAIN)
    few = replace(found.candidate, requests=found.candidate.requests[:22])
    result = judge(Evidence(few))
    assert verdicts(result) == {"0-63": "certified", "64-127": "certified", "128-191": "inconclusive"}
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "128-191: 100 tokens for law, 200 are needed" in result.summary


@pytest.mark.medium
def test_an_arm_that_stays_below_the_maximum_is_undecided():
    found = evidence(CHAIN)
    assert "the longest context is 190 of 193" in judge(found, maximum=193).summary
    assert judge(found, maximum=193).verdict is Verdict.INCONCLUSIVE
    assert "does not say the target's maximum" in judge(found, maximum=0).summary


def test_the_engine_s_own_word_is_the_maximum():
    found = evidence(CHAIN)
    stated = replace(found.candidate, effective=found.candidate.effective.with_fact("context", 192))
    assert judge(Evidence(stated), maximum=0).verdict is Verdict.CERTIFIED


def test_buckets_before_the_shortest_prompt_are_left_out():
    found = evidence(CHAIN)
    late = replace(found.candidate, requests=found.candidate.requests[10:])
    result = judge(Evidence(late))
    assert list(verdicts(result)) == ["64-127", "128-191"]
    assert result.verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_differences_without_a_control_are_undecided():
    found = evidence(COUPLED, "unverified", places=(2,))
    result = judge(Evidence(found.candidate, found.baseline))
    assert verdicts(result)["128-191"] == "inconclusive"
    assert "that no control attributes" in result.summary


@pytest.mark.medium
def test_evidence_that_is_missing_is_no_pass():
    cold, sampled = evidence(COLD), evidence(CHAIN)
    assert "no baseline" in judge(Evidence(cold.candidate)).summary
    assert judge(Evidence(replace(sampled.candidate, level=Level.L2))).verdict is Verdict.NOT_RUN
    scalars = evidence(replace(CHAIN, level=RecordLevel.SCALARS), requests=2)
    assert judge(scalars).verdict is Verdict.INCONCLUSIVE


@pytest.mark.slow
def test_false_alarms_stay_at_their_level():
    """60 clean arms at alpha 0.01: inside the 99.9 % binomial band."""
    false, runs = 0, 60
    for seed in range(runs):
        setup = replace(CHAIN, sampling=replace(SAMPLED, seed=seed))
        candidate = by_length([setup] * len(LENGTHS), requests=6, seed=seed % 7)
        false += judge(Evidence(candidate), alpha=0.01).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)
