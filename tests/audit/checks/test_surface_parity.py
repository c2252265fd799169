"""The check surface_parity on records: lost fields, contradictions, and chance in what answers say."""

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.service.surface_parity import CHECK, ArmSurface, fewer_than_plain
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.backends.openai.surface import WHOLE_LISTS
from engine.record.effective import Effective
from tests.audit.checks.external_arms import answered

FIELDS = ("content", "logprobs", "stop_reason", "token_ids", "top_logprobs", "usage.completion_tokens")


def surface(*without, **more):
    return {"fields": [name for name in FIELDS if name not in without], **more}


def arm_of(surfaces, kind):
    requests = tuple(answered(at, {"surface": told}) for at, told in enumerate(surfaces))
    return ArmRecord(kind.value, kind, Level.L1, Effective(), requests)


def judge(candidate, baseline=None):
    plain = [surface()] * 4 if baseline is None else baseline
    arms = arm_of(candidate, ArmKind.CANDIDATE), arm_of(plain, ArmKind.BASELINE)
    return evaluate(CHECK, Evidence(*arms), {})


def test_equal_surfaces_are_certified_with_a_table():
    found = judge([surface()] * 5)
    assert found.verdict is Verdict.CERTIFIED
    assert found.summary == "6 fields that every plain answer fills are in all 5 answers"
    assert found.details["fields"]["logprobs"] == {"candidate": 5, "baseline": 4}


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "content"])
def test_a_field_that_one_answer_lost_is_a_fault(name):
    found = judge([surface(), surface(), surface(name)])
    assert found.verdict is Verdict.FAULT
    assert found.findings[0].message == f"{name}: filled in all 4 plain answers, missing in 1 of 3"


def test_a_field_that_plain_answers_lack_too_is_no_loss_and_one_more_is_none():
    assert judge([surface("logprobs")] * 3, [surface(), surface("logprobs")]).verdict is Verdict.CERTIFIED
    assert judge([surface()] * 3, [surface("logprobs")] * 3).verdict is Verdict.CERTIFIED


def test_a_field_that_only_speculating_streams_lose_is_a_fault():
    lost = surface(streamed_lacks=["logprobs"])
    assert judge([surface(), lost]).verdict is Verdict.FAULT
    assert judge([surface(), lost], [lost] * 4).verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("flaw", [{"flaws": [{"place": 3, "text": "above 0"}]}, {"behind": 0.5, "behind_at": 3}])
def test_an_answer_that_contradicts_itself_is_a_fault_unless_plain_ones_do(flaw):
    found = judge([surface(), surface(**flaw)])
    assert (found.verdict, found.findings[0].step) == (Verdict.FAULT, 3)
    assert judge([surface(**flaw)], [surface(**flaw)]).verdict is Verdict.INCONCLUSIVE
    assert judge([surface()], [surface(**flaw)]).verdict is Verdict.CERTIFIED


def test_a_tie_is_no_contradiction():
    assert judge([surface(behind=0.001, behind_at=0)]).verdict is Verdict.CERTIFIED


def counts(answers, filled, name):
    told = {str(at): surface(*(() if at < filled else (name,))) for at in range(answers)}
    return ArmSurface(told, {name: filled})


@pytest.mark.parametrize("name", ["content", WHOLE_LISTS])
def test_what_answers_say_may_differ_by_chance_at_the_stated_rate(name):
    """At 1e-4 for five fields at most 2e-5 of pairs with equal shares alarm: none of 400 with probability 0.99."""
    random = np.random.default_rng(7)
    for share in (0.1, 0.5, 0.9, 1.0):
        for ours, plain in random.binomial(64, share, (100, 2)):
            assert not list(fewer_than_plain(counts(64, ours, name), counts(64, plain, name), 1e-4))
    for ours, plain in zip(random.binomial(64, 0.4, 20), random.binomial(64, 0.95, 20), strict=True):
        (found,) = fewer_than_plain(counts(64, ours, name), counts(64, plain, name), 1e-4)
        assert found.message.startswith(f"{name}: filled in {plain} of 64 plain answers")


def test_lists_that_are_shorter_in_one_answer_are_no_fault_and_in_all_of_them_one():
    """Where a list has one entry per text; tokens of one text share it, whoever drafts."""
    plain = [{"fields": [*FIELDS, WHOLE_LISTS]}] * 20
    assert judge([*plain[1:], surface()], plain).verdict is Verdict.CERTIFIED
    assert judge([surface()] * 20, plain).verdict is Verdict.FAULT


def test_without_a_service_or_plain_answers_nothing_is_judged():
    plain = ArmRecord("a", ArmKind.CANDIDATE, Level.L1, Effective(), (answered(0),))
    assert evaluate(CHECK, Evidence(plain), {}).verdict is Verdict.NOT_RUN
    assert evaluate(CHECK, Evidence(arm_of([surface()], ArmKind.CANDIDATE)), {}).verdict is Verdict.NOT_RUN
    assert judge([surface()], []).verdict is Verdict.INCONCLUSIVE
