"""The check identity on records: who answered, in the arm and in its baseline."""

import pytest

from audit.checks.base.interface import evaluate
from audit.checks.service.identity import CHECK
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.record.effective import Effective
from tests.audit.checks.external_arms import answered

SOUND = {"model": "m", "system_fingerprint": "fp"}


def arm_of(answers, kind=ArmKind.CANDIDATE, asked="m", later=None, **settings):
    facts = [{"answer": told} if "answer" not in told else told for told in answers]
    if later is not None:
        facts[-1] = {**facts[-1], "version_after": later}
    effective = {"url": "http://a/v1", "requested": {"model": asked}, "effective": {}, **settings}
    requests = tuple(answered(at, told) for at, told in enumerate(facts))
    return ArmRecord(kind.value, kind, Level.L1, Effective.from_json(effective), requests)


def judge(candidate, baseline=None):
    return evaluate(CHECK, Evidence(candidate, baseline or arm_of([SOUND] * 4, ArmKind.BASELINE)), {})


def test_one_service_under_the_requested_name_is_certified_and_named():
    found = judge(arm_of([SOUND] * 5))
    assert found.verdict is Verdict.CERTIFIED
    assert found.summary == "all 5 answers are by 'm', fingerprint 'fp'"
    assert found.n == 9


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({**SOUND, "model": "n"}, "model changed from 'm' to 'n'"),
        ({"system_fingerprint": "fp"}, "model changed from 'm' to None"),
        ({"model": "m", "system_fingerprint": "fq"}, "system_fingerprint changed from 'fp' to 'fq'"),
        ({"model": "m"}, "system_fingerprint changed from 'fp' to None"),
        ({**SOUND, "provider": "p"}, "provider changed from None to 'p'"),
        ({**SOUND, "service_tier": "flex"}, "service_tier changed from None to 'flex'"),
        ({"answer": SOUND, "streamed_answer": {**SOUND, "model": "n"}}, "model changed from 'm' to 'n'"),
    ],
)
@pytest.mark.parametrize("role", ["candidate", "baseline"])
def test_a_change_within_an_arm_is_a_fault_at_its_first_answer(other, name, role):
    answers = [SOUND, SOUND, other, SOUND, other]
    candidate = arm_of(answers if role == "candidate" else [SOUND] * 5)
    found = judge(candidate, arm_of(answers, ArmKind.BASELINE) if role == "baseline" else None)
    assert found.verdict is Verdict.FAULT
    assert name in found.summary
    assert found.findings[0].request == candidate.requests[2].request_id
    assert found.statistic == 2


@pytest.mark.parametrize(
    ("answer", "version", "verdict"),
    [
        ({"system_fingerprint": "weights 1"}, "0.5 serving m", Verdict.CERTIFIED),
        ({"system_fingerprint": "weights 1"}, "0.5 serving n", Verdict.INCONCLUSIVE),
        ({"system_fingerprint": "weights 1"}, "0.5", Verdict.INCONCLUSIVE),
        ({}, "0.5 serving m", Verdict.INCONCLUSIVE),
    ],
)
def test_a_page_that_names_the_model_stands_for_answers_that_name_their_weights(answer, version, verdict):
    arms = [
        arm_of([answer] * 3, kind, version=version, later=version) for kind in (ArmKind.CANDIDATE, ArmKind.BASELINE)
    ]
    assert judge(*arms).verdict is verdict


def test_another_version_behind_the_arm_is_a_fault():
    assert judge(arm_of([SOUND] * 3, version="1", later="1")).verdict is Verdict.CERTIFIED
    found = judge(arm_of([SOUND] * 3, version="1", later="2"))
    assert found.verdict is Verdict.FAULT
    assert "version changed from '1' to '2'" in found.summary


def test_one_other_name_for_all_is_undecided_until_the_suite_declares_it():
    mapped = [{"model": "m-2026"}] * 3
    found = judge(arm_of(mapped), arm_of(mapped, ArmKind.BASELINE))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "write engine.answers_as: 'm-2026'" in found.summary
    declared = [arm_of(mapped, kind, answers_as="m-2026") for kind in (ArmKind.CANDIDATE, ArmKind.BASELINE)]
    assert judge(*declared).verdict is Verdict.CERTIFIED
    found = judge(arm_of([SOUND] * 3, answers_as="m-2026"))
    assert found.verdict is Verdict.INCONCLUSIVE


def test_two_models_for_one_name_in_two_arms_are_a_fault_and_two_requested_ones_are_not():
    other = [{"model": "n"}] * 3
    assert judge(arm_of(other)).verdict is Verdict.FAULT
    assert judge(arm_of(other, asked="n")).verdict is Verdict.CERTIFIED


def test_answers_without_a_model_are_undecided():
    found = judge(arm_of([{}] * 3), arm_of([{}] * 3, ArmKind.BASELINE))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "answers name no model" in found.summary


def test_instances_need_a_fingerprint_that_shows_them_alike():
    routes = [{"x-served-by": name} for name in ("a", "b", "a")]
    known = judge(arm_of([{**SOUND, "route": route} for route in routes]))
    assert known.verdict is Verdict.CERTIFIED
    found = judge(arm_of([{"model": "m", "route": route} for route in routes]))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "2 instances" in found.summary


def test_an_engine_without_a_service_has_no_identity():
    assert (
        evaluate(CHECK, Evidence(ArmRecord("a", ArmKind.CANDIDATE, Level.L1, Effective(), (answered(0),))), {}).verdict
        is Verdict.NOT_RUN
    )
