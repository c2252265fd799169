from dataclasses import replace

import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from tests.audit.checks.external_arms import answered, evidence, failed

CHECK = checks.load("liveness")


def test_all_answered_is_certified():
    found = evaluate(CHECK, evidence(answered(i) for i in range(5)), {})
    assert found.verdict is Verdict.CERTIFIED
    assert (found.n, found.effect) == (5, 0.0)
    assert found.summary.startswith("all 5 requests were answered")


def test_one_lost_request_is_a_fault_that_names_it():
    found = evaluate(CHECK, evidence([answered(i) for i in range(9)], [failed(9, message="EngineDeadError")]), {})
    assert found.verdict is Verdict.FAULT
    assert (found.n, found.statistic, found.effect) == (10, 1.0, 0.1)
    (finding,) = found.findings
    assert finding.request == "candidate/case-9#0"
    assert finding.message == "engine_died: EngineDeadError"


def test_the_request_that_killed_the_engine_is_told_before_those_that_were_not_tried():
    lost = [*(failed(i, "not_tried", "not tried: the engine died twice") for i in range(30)), failed(30)]
    found = evaluate(CHECK, evidence([], lost), {})
    assert found.findings[0].request == "candidate/case-30#0"
    assert found.details["kinds"] == {"engine_died": 1, "not_tried": 30}


def test_refusals_count_unless_they_are_allowed():
    lost = [failed(3, "refused", "min_p is not supported")]
    assert evaluate(CHECK, evidence([answered(1)], lost), {}).verdict is Verdict.FAULT
    allowed = evaluate(CHECK, evidence([answered(1)], lost), {"refusals": True})
    assert allowed.verdict is Verdict.CERTIFIED
    assert "1 refused, which the suite allows" in allowed.summary
    assert allowed.findings == ()


def both(lost, lost_plain, of=4, **params):
    """`of` requests in candidate and baseline; those with the given numbers died."""
    ours, plain = (
        evidence([answered(i) for i in range(of) if i not in dead], [failed(i) for i in dead]).candidate
        for dead in (lost, lost_plain)
    )
    requests = tuple(replace(each, request_id=f"baseline/case-{each.case_id}") for each in plain.failed)
    return evaluate(CHECK, Evidence(ours, replace(plain, kind=ArmKind.BASELINE, failed=requests)), params)


def test_a_request_that_dies_without_speculation_as_well_is_not_the_speculating_arm_s_fault():
    found = both([1, 2], [1, 2])
    assert found.verdict is Verdict.FAULT
    assert found.summary == (
        "2 of 4 requests have no answer (2 engine_died), without speculation as well: fault of the baseline, "
        "where 2 of 4 requests have no answer (2 engine_died)"
    )
    assert [each.message for each in found.findings] == [
        "engine_died: the engine died; without speculation as well"
    ] * 2
    assert found.details["without_speculation_as_well"] == 2


def test_what_only_the_speculating_arm_lost_is_told_apart_and_first():
    found = both([1, 2], [1])
    assert "1 of them without speculation as well" in found.summary
    assert "fault of the baseline" not in found.summary
    assert [each.request for each in found.findings] == ["candidate/case-2#0", "candidate/case-1#0"]
    assert both([1], []).summary == "1 of 4 requests have no answer (1 engine_died)"


def test_a_baseline_that_lost_requests_is_judged_although_speculation_answered_all():
    found = both([], [3])
    assert found.verdict is Verdict.FAULT
    assert found.summary == (
        "all 4 requests were answered; fault of the baseline: without speculation 1 of 4 requests have no answer "
        "(1 engine_died)"
    )
    assert found.findings[0].message == "without speculation: engine_died: the engine died"


@pytest.mark.medium
def test_a_margin_needs_enough_requests():
    few, enough = ([answered(i) for i in range(count)] for count in (10, 60))
    assert evaluate(CHECK, evidence(few), {"margin": 0.1}).verdict is Verdict.INCONCLUSIVE
    assert evaluate(CHECK, evidence(enough), {"margin": 0.1}).verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("name", checks.names())
def test_an_arm_without_an_answer_is_judged_by_what_looks_at_failures_and_nothing_else(name):
    check = checks.load(name)
    said = {"requested": {"a": 1}, "effective": {"a": 1}}
    found = evaluate(check, evidence([], [failed(0)], said, Level.L4), {})
    if not check.failures:
        assert found.verdict is Verdict.NOT_RUN
        assert "no request was answered" in found.summary
    else:
        assert found.verdict is (Verdict.FAULT if name == "liveness" else Verdict.CERTIFIED)
