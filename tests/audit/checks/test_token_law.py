from dataclasses import replace

import pytest
from scipy.stats import binom

from audit.checks import load
from audit.checks.base.interface import Design, evaluate
from audit.checks.token_law.rows import copies
from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, Protocol, RecordLevel
from tests.audit.checks.anchor_arms import beside_the_target, world_reference
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, world
from tests.support.served import served

CHECK = load("token_law")
SHORT = replace(SAMPLED, max_new_tokens=32)


def drawn(setup, seed, requests):
    return arm(world(seed), replace(setup, sampling=replace(setup.sampling, seed=seed)), requests).requests


def seen(setup, seed, requests, level=RecordLevel.FULL):
    return beside_the_target(map(served, drawn(setup, seed, requests)), world(seed), level)


def judge(evidence, **params):
    return evaluate(CHECK, evidence, params)


@pytest.mark.medium
def test_a_clean_engine_is_certified_from_tokens_alone():
    result = judge(seen(Setup(), 4, 16), margin=0.1)
    assert result.verdict is Verdict.CERTIFIED, (result.summary, result.findings)
    assert result.n == 1024
    assert abs(result.effect) <= result.bound <= result.margin
    assert 0 < result.detectable < 0.1


@pytest.mark.medium
def test_cells_give_the_bounds_of_whole_rows():
    whole, cells = (judge(seen(Setup(), 4, 2, level)) for level in (RecordLevel.FULL, RecordLevel.TOPK))
    assert cells.n == whole.n
    assert cells.bound == pytest.approx(whole.bound, abs=2e-3)
    assert cells.statistic == pytest.approx(whole.statistic, abs=0.5)


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "requests"), [("argmax_draft", 8), ("wrong_bonus_row", 16)])
def test_a_fault_is_found_within_1024_tokens(fault, requests):
    result = judge(seen(Setup(fault=fault), 2, requests))
    assert result.verdict is Verdict.FAULT
    assert result.findings[0].message.startswith("named alternatives, led by ")


@pytest.mark.medium
def test_truncated_laws_are_judged_and_an_impossible_token_is_a_fault():
    requests = drawn(Setup(sampling=replace(SHORT, top_k=3)), 3, 8)
    assert judge(beside_the_target(map(served, requests), world(3))).verdict is Verdict.INCONCLUSIVE
    first = requests[0]
    row = world_reference(world(3)).rows((*first.trace.header.prompt, *first.tokens), len(first.trace.header.prompt))[0]
    least = int(row.argmin())
    found = judge(beside_the_target([served(first, (least, *first.tokens[1:]))], world(3)))
    assert found.verdict is Verdict.FAULT
    assert f"token {least} was emitted, its p is 0" in found.findings[0].message


@pytest.mark.medium
def test_end_tokens_that_the_server_hides_are_taken_out_of_the_laws():
    """The record of an endpoint that names ids with its log-probabilities lacks the token that ended the answer."""
    requests = drawn(Setup(sampling=SHORT, eos=(2,)), 5, 40)
    ended = [each for each in requests if each.finish_reason is FinishReason.EOS]
    assert len(ended) > 10
    kept = [served(each, each.tokens[: -1 if each in ended else None], "log-probabilities") for each in requests]
    result = judge(beside_the_target([each for each in kept if each.tokens], world(5)), min_tokens=100, margin=0.3)
    assert result.verdict is Verdict.CERTIFIED, (result.summary, result.findings)


def test_tokens_of_a_text_are_not_those_that_were_drawn():
    requests = drawn(Setup(sampling=SHORT), 1, 2)
    result = judge(beside_the_target([served(each, origin="tokenizer") for each in requests], world(1)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "its tokens are by tokenizer" in result.summary


@pytest.mark.medium
def test_at_temperature_0_every_token_is_the_likeliest_one_of_the_reference():
    requests = [*map(served, drawn(Setup(Protocol.GREEDY, sampling=GREEDY), 1, 2))]
    result = judge(beside_the_target(requests, world(1)))
    assert result.verdict is Verdict.CERTIFIED, (result.summary, result.findings)
    assert result.bound <= result.margin
    assert judge(beside_the_target(requests, world(1)), margin=0.01).verdict is Verdict.INCONCLUSIVE
    # the engine draws at temperature 1, and its records say 0
    drawn_hot = [
        replace(each, trace=replace(each.trace, header=replace(each.trace.header, sampling=GREEDY)))
        for each in map(served, drawn(Setup(sampling=SHORT), 1, 2))
    ]
    hot = judge(beside_the_target(drawn_hot, world(1)))
    assert hot.verdict is Verdict.FAULT
    assert "nats in the reference's row" in hot.findings[0].message
    assert hot.statistic == round(hot.effect * hot.n) > 0


def test_it_does_not_run_without_an_anchor():
    bare = replace(seen(Setup(sampling=SHORT), 1, 2), companions={})
    assert judge(bare).verdict is Verdict.NOT_RUN
    assert judge(bare).lacking


def test_a_plan_needs_more_tokens_for_a_smaller_margin():
    design = Design(64, 64, 4096, 4, greedy=False, level=Level.L0)
    wide, tight = (CHECK.plan({**CHECK.defaults, "margin": margin}, design).units for margin in (0.1, 0.05))
    assert 300 < wide < tight < 3000


def test_a_copy_is_the_token_after_the_last_same_pair():
    assert list(copies([1, 2, 3, 1, 2, 4, 1, 2, 9], 3)) == [-1, -1, 3, -1, -1, 4]


@pytest.mark.slow
def test_clean_arms_raise_no_more_alarms_than_the_level():
    """200 clean arms of 160 tokens at alpha 0.05: inside the 99.9 % binomial band."""
    truncated = Setup(sampling=replace(SHORT, top_p=0.8))
    kinds = (Setup(sampling=SHORT), Setup(Protocol.GUMBEL, "coupled", sampling=SHORT), truncated)
    alarms = sum(judge(seen(kinds[seed % 3], seed, 5), alpha=0.05).verdict is Verdict.FAULT for seed in range(200))
    assert alarms <= binom.ppf(0.999, 200, 0.05)
