from audit.checks.base.interface import evaluate
from audit.checks.reconciliation import CHECK
from audit.evidence.verdicts import Verdict
from tests.audit.checks.external_arms import answered, evidence


def account(*mismatches, faults=()):
    both = {"mismatches": [*mismatches, *faults], "faults": list(faults)}
    return {"reconciliation": {"sources": ["worker hook", "outputs"], **both}}


def test_accounts_that_agree_are_certified_and_named():
    found = evaluate(CHECK, evidence(answered(i, account()) for i in range(3)), {})
    assert found.verdict is Verdict.CERTIFIED
    assert found.summary == "outputs, worker hook agree on all 3 requests"


def test_a_mismatch_is_inconclusive_and_no_fault():
    found = evaluate(CHECK, evidence([answered(0, account()), answered(1, account("2 tokens, outputs have 3"))]), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    (finding,) = found.findings
    assert (finding.request, finding.message) == ("candidate/case-1#0", "2 tokens, outputs have 3")


def test_a_token_that_the_target_did_not_draw_is_a_fault():
    wrong = account("counters: 3, not 2", faults=["tokens: 7 at place 0, where it drew 9"])
    found = evaluate(CHECK, evidence([answered(0, account()), answered(1, wrong)]), {})
    assert found.verdict is Verdict.FAULT
    assert found.summary.startswith("1 of 2 requests returned tokens that the target did not draw, first: tokens: 7")
    assert [each.message for each in found.findings] == ["tokens: 7 at place 0, where it drew 9", "counters: 3, not 2"]
    assert found.statistic == 2


def test_a_hook_that_found_the_engine_changed_excuses_such_a_token():
    effective = {"evidence": {"level": 1, "problems": ["sampler: no such callable"]}}
    found = evaluate(CHECK, evidence([answered(0, account(faults=["7, not 9"]))], effective=effective), {})
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_request_without_an_account_is_not_certified():
    found = evaluate(CHECK, evidence([answered(0, account()), answered(1)]), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.summary == "1 of 2 requests have no account"


def test_a_hook_that_found_the_engine_changed_is_told():
    effective = {"evidence": {"level": 1, "problems": ["rejection_sample: no such callable"]}}
    found = evaluate(CHECK, evidence([answered(0)], effective=effective), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no such callable" in found.summary


def test_one_account_is_nothing_to_reconcile():
    assert evaluate(CHECK, evidence([answered(0)]), {}).verdict is Verdict.NOT_RUN


def served(drafted, counted, sent=None, finished=None, **more):
    """Answers that count drafts each, and behind the last one the growth of the server's counters."""
    facts = [{**account(), "attempts": 1, "speculation": {"drafted": n, "accepted": n // 2}, **more} for n in drafted]
    window = {"requests": len(drafted) if sent is None else sent, "drafted": counted, "samples": {}}
    facts[-1]["server_counters"] = window | ({} if finished is None else {"finished": finished})
    return evaluate(CHECK, evidence([answered(i, fact) for i, fact in enumerate(facts)]), {})


def test_counters_that_grew_by_less_than_the_answers_count_contradict_them():
    found = served([500, 465], 757)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the answers count 965 drafted tokens, the server's counter grew by 757" in found.summary


def test_counters_that_grew_by_more_contradict_only_where_the_arm_was_alone():
    assert served([5, 6], 20).verdict is Verdict.CERTIFIED
    assert served([5, 6], 20, finished=3).verdict is Verdict.CERTIFIED
    assert served([5, 6], 20, finished=2).verdict is Verdict.INCONCLUSIVE
    assert served([5, 6], 11, finished=2).verdict is Verdict.CERTIFIED
    # a lost attempt and a streamed twin draft too
    assert served([5, 6], 20, finished=2, attempts=2).verdict is Verdict.CERTIFIED
    assert served([5, 6], 20, finished=2, streamed_answer={}).verdict is Verdict.CERTIFIED
    assert served([5, 6], 20, finished=2, sent=3).verdict is Verdict.CERTIFIED


def test_more_drafted_tokens_than_places_are_a_contradiction_of_the_counters_alone():
    name = "vllm:spec_decode_num_{}_total"
    samples = {f"{name.format('accepted_tokens_per_pos')}[{place}]": 1.0 for place in range(3)}
    samples |= {name.format("drafts"): 10.0, name.format("draft_tokens"): 31.0}
    window = {"server_counters": {"requests": 1, "samples": samples}}
    found = evaluate(CHECK, evidence([answered(0, account() | window)]), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.summary.endswith("the server counts 31 drafted tokens in 10 drafts of at most 3")
