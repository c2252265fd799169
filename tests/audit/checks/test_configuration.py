from audit.checks.base.interface import evaluate
from audit.checks.configuration import CHECK
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.record.effective import Effective
from tests.audit.checks.external_arms import answered, evidence


def judge(requested, effective):
    return evaluate(CHECK, evidence([answered(0)], effective={"requested": requested, "effective": effective}), {})


def test_equal_settings_are_certified():
    found = judge({"method": "ngram", "gamma": 3}, {"method": "ngram", "gamma": 3, "runner": "V1"})
    assert found.verdict is Verdict.CERTIFIED
    assert found.n == 2


def test_an_ignored_setting_is_a_fault_that_names_both_values():
    found = judge({"rejection_sample_method": "block"}, {"rejection_sample_method": "standard"})
    assert found.verdict is Verdict.FAULT
    assert found.summary == "rejection_sample_method: requested 'block', effective 'standard'"
    assert [each.message for each in found.findings] == [found.summary]


def test_what_is_not_read_back_is_not_certified():
    found = judge({"seed": 1, "gamma": 3}, {"gamma": 3})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.summary.endswith(": seed")


def test_our_own_backends_have_nothing_to_compare():
    assert evaluate(CHECK, evidence([answered(0)]), {}).verdict is Verdict.NOT_RUN


def with_baseline(candidate, baseline):
    ours, theirs = (
        Effective.from_json({"requested": {"drafts": asked}, "effective": effective})
        for asked, effective in (candidate, baseline)
    )
    arms = (
        ArmRecord("a", ArmKind.CANDIDATE, Level.L1, ours, ()),
        ArmRecord("b", ArmKind.BASELINE, Level.L1, theirs, ()),
    )
    return evaluate(CHECK, Evidence(*arms), {})


def test_a_baseline_that_is_not_what_was_asked_for_is_a_fault():
    good = (True, {"drafts": True})
    assert with_baseline(good, (False, {"drafts": False})).verdict is Verdict.CERTIFIED
    found = with_baseline(good, (False, {"drafts": True}))
    assert found.verdict is Verdict.FAULT
    assert found.summary == "the baseline's drafts: requested False, effective True"
    assert with_baseline(good, (False, {})).verdict is Verdict.INCONCLUSIVE


def of_requests(*accounts):
    answers = [answered(i, {"request": {"requested": a, "effective": b}}) for i, (a, b) in enumerate(accounts)]
    settings = {"requested": {"gamma": 3}, "effective": {"gamma": 3}}
    return evaluate(CHECK, evidence(answers, effective=settings), {})


def test_a_request_served_with_another_setting_is_a_fault():
    right = ({"adapter": "one"}, {"adapter": "one"})
    assert of_requests(right, right).verdict is Verdict.CERTIFIED
    found = of_requests(right, ({"adapter": None}, {"adapter": "one"}), ({"adapter": "two"}, {"adapter": "one"}))
    assert found.verdict is Verdict.FAULT
    first = "request's adapter: requested None, effective 'one'"
    assert found.summary == f"settings of 2 requests, first {first}"
    assert [each.request for each in found.findings] == ["candidate/case-1#0", "candidate/case-2#0"]


def test_a_setting_that_no_request_shows_is_not_certified_and_one_that_some_show_is():
    silent = ({"include_stop_str_in_output": True}, {})
    shown = ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True})
    assert of_requests(silent, shown).verdict is Verdict.CERTIFIED
    found = of_requests(silent, silent)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.summary.endswith(": include_stop_str_in_output")


def test_settings_of_the_baseline_s_requests_are_compared_too():
    settings = {"requested": {"gamma": 3}, "effective": {"gamma": 3}}
    good, bad = (
        evidence(
            [answered(1, {"request": {"requested": {"n": 2}, "effective": {"n": n}}})], effective=settings
        ).candidate
        for n in (2, 1)
    )
    assert evaluate(CHECK, Evidence(good, good), {}).verdict is Verdict.CERTIFIED
    assert evaluate(CHECK, Evidence(good, bad), {}).verdict is Verdict.FAULT
