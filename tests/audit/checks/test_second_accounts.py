"""Every recorded quantity has a judge: the table, the derived batteries, and the check that names the others."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from audit import checks
from audit.checks.accounts.check import CHECK, recorded, settled
from audit.checks.base.interface import EVERYTHING, evaluate
from audit.checks.battery import standard_checks
from audit.errors import UserError
from audit.evidence.accounts import TABLE, ArmOutline, Quantity, accounts_of
from audit.evidence.reading import RequestReading
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine import backends
from engine.backends.evidence import ArmEvidence, Part
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner
from tests.audit.checks.engine_arms import engine_arm, plan
from tests.support.cases import every_case

ALL_JUDGED = dict.fromkeys(checks.REGISTRY, Verdict.CERTIFIED)


def outlines():
    """Every backend at every level, greedy and sampled, with everything that a request can ask for."""
    for backend in backends.REGISTRY:
        declared = backends.declared(backend)
        for record, shown in declared.levels.items():
            for greedy in (True, False):
                for promises in ("none", "everywhere"):
                    # an arm of transformers drafts, and is reconciled (`engine.backends.transformers.settings`)
                    parts = shown.parts | ({Part.ACCOUNTS} if backend == "transformers" else set())
                    evidence = ArmEvidence(
                        declared.decoder, shown.level, parts, Protocol.CHAIN, drawn=not greedy, promises=promises
                    )
                    yield (
                        f"{backend} {record} {greedy} {promises}",
                        ArmOutline(
                            evidence, shown.level, greedy, calls=True, structured=True, streamed=True, filtered=True
                        ),
                    )


def held(waive=None, arm=None):
    evidence = Evidence(arm or engine_arm(plan(), requests=2))
    return evaluate(CHECK, evidence, {"waive": waive or {}})


def test_the_table_names_registered_checks_and_every_quantity():
    assert set(TABLE) == set(Quantity)
    named = {name for entry in TABLE.values() for account in entry.accounts for name in account.checks}
    assert named <= set(checks.REGISTRY)
    assert [quantity for quantity, entry in TABLE.items() if not entry.accounts] == [Quantity.LATENCIES]


def test_a_battery_has_a_judge_for_every_quantity_that_has_an_account():
    with every_case() as case:
        for name, arm in outlines():
            with case(name):
                battery = standard_checks(arm)
                assert battery[-1] == "second_accounts"
                for quantity, accounts in accounts_of(arm):
                    judges = {name for account in accounts for name in account.checks}
                    assert not judges or judges & set(battery), quantity


def test_only_hosted_endpoints_hold_a_quantity_without_an_account():
    lacking = {
        (name.split()[0], quantity)
        for name, arm in outlines()
        for quantity, accounts in accounts_of(arm)
        if not accounts and not TABLE[quantity].optional
    }
    assert lacking == {("openai", Quantity.LOGPROBS)}


def test_the_ends_of_a_hosted_endpoint_are_the_baseline_s():
    """Its end tokens are not known, so that accounting cannot judge them."""
    shown = backends.declared("openai").levels[RecordLevel.TOKENS]
    ends = {}
    for greedy in (True, False):
        evidence = ArmEvidence(backends.declared("openai").decoder, shown.level, shown.parts, Protocol.CHAIN)
        ends[greedy] = dict(accounts_of(ArmOutline(evidence, shown.level, greedy)))[Quantity.ENDS][0].checks
    assert "greedy_equality" in ends[True]
    assert ends[False] == ("two_sample",)


def test_rows_are_read_with_equal_bits_or_beside_an_independent_pass():
    def judges(**changes):
        shown = dataclasses.replace(EVERYTHING, **changes)
        accounts = dict(accounts_of(ArmOutline(shown, 4, greedy=False)))[Quantity.ROWS]
        return next(account.checks for account in accounts)

    assert judges() == ("bitwise",)
    assert judges(promises="none") == ("row_closeness",)
    assert judges(promises="chain", shape="tree") == ("row_closeness",)
    assert judges(promises=None) == ("row_closeness",)
    assert judges(parts=EVERYTHING.parts - {Part.REREAD}) == ("row_closeness",)


def test_parameters_are_judged_by_applied_probabilities_or_by_tokens():
    def first(level, *parts, greedy=False):
        shown = ArmEvidence(LoopOwner.FOREIGN, level, frozenset(parts), Protocol.CHAIN)
        account, *_ = dict(accounts_of(ArmOutline(shown, level, greedy)))[Quantity.PARAMETERS]
        return account.checks

    named = (Part.REFERENCE, Part.TOKENS)
    assert first(3, *named, Part.P, Part.APPLIED) == ("honoured",)
    assert first(3, *named, Part.P) == ("honoured_by_tokens",)
    assert first(0, *named) == ("honoured_by_tokens",)
    assert first(0, Part.REFERENCE) == ("configuration",), "tokens of a text"
    assert first(0, *named, greedy=True) == ("configuration",)
    assert first(0, Part.TOKENS) == ("configuration",)


def test_tokens_of_another_engine_are_followed_by_an_independent_pass():
    """A baseline of the same engine shares its faults, at temperature 0 and under shared seeds too."""
    named = frozenset((Part.REFERENCE, Part.TOKENS))

    def judges(level, greedy, parts=named, rule=Protocol.CHAIN, decoder=LoopOwner.FOREIGN):
        shown = ArmEvidence(decoder, level, parts, Protocol.GREEDY if greedy else rule)
        account, *_ = dict(accounts_of(ArmOutline(shown, level, greedy)))[Quantity.TOKENS]
        return account.checks

    followed = [judges(level, greedy) for level in range(3) for greedy in (True, False)]
    assert followed == [("token_law",)] * 6
    assert judges(1, greedy=False, rule=Protocol.GUMBEL) == ("token_law",)
    bare = frozenset((Part.REFERENCE,))
    assert judges(0, greedy=True, parts=bare) == ("greedy_equality", "coupled_equality"), "tokens of a text"
    assert judges(0, greedy=False, parts=bare) == ("two_sample",)
    assert judges(0, greedy=False, parts=bare, rule=Protocol.GUMBEL) == ("same_seed",)
    assert judges(1, greedy=True, decoder=LoopOwner.OWN) == ("greedy_equality", "coupled_equality")
    assert judges(3, greedy=False)[0] == "law"


@pytest.mark.medium
def test_a_sampled_arm_holds_rows_numbers_drafts_and_decisions():
    arm = engine_arm(plan(), requests=2)
    quantities = recorded(RequestReading(arm.requests[0], arm))
    assert {Quantity.ROWS, Quantity.NUMBERS, Quantity.DRAFTS, Quantity.DRAFT_ROWS, Quantity.DECISIONS} <= quantities
    assert not {Quantity.CALLS, Quantity.MASKS, Quantity.CHUNKS, Quantity.SEEDS} & quantities


@pytest.mark.medium
def test_each_recorded_quantity_needs_a_check_that_judged_it():
    result = held()
    assert settled(result, ALL_JUDGED).verdict is Verdict.CERTIFIED
    assert "not looked at twice: latencies (no verdict rests on them)" in settled(result, ALL_JUDGED).summary
    for name in result.details["recorded"]:
        if name == Quantity.LATENCIES:
            continue
        judges = {judge for account in TABLE[Quantity(name)].accounts for judge in account.checks}
        lacking = settled(result, ALL_JUDGED | dict.fromkeys(judges, Verdict.NOT_RUN))
        assert lacking.verdict is Verdict.INCONCLUSIVE
        assert "nobody judged" in lacking.summary
        assert name in lacking.summary
        for judge in judges:
            assert f"{judge} did not run" in lacking.summary
        unlisted = settled(result, {judge: verdict for judge, verdict in ALL_JUDGED.items() if judge not in judges})
        assert all(f"{judge} is not listed" in unlisted.summary for judge in judges)
        assert unlisted.summary.endswith(
            f'add to the suite checks: {{second_accounts: {{waive: {{{name}: "REASON"}}}}}}'
        )


@pytest.mark.medium
def test_a_waived_quantity_is_named_with_its_reason():
    waived = held({"target rows": "the provider keeps the weights"})
    rows = {judge for account in TABLE[Quantity.ROWS].accounts for judge in account.checks}
    result = settled(waived, ALL_JUDGED | dict.fromkeys(rows, Verdict.NOT_RUN))
    assert result.verdict is Verdict.CERTIFIED
    assert "target rows (the provider keeps the weights)" in result.summary


@pytest.mark.parametrize(
    ("waive", "words"),
    [({"target row": "x"}, 'unknown quantity "target row"'), ({"target rows": " "}, "needs a reason")],
)
def test_a_waiver_names_a_quantity_and_a_reason(waive, words):
    with pytest.raises(UserError, match=words):
        CHECK.accept({"waive": waive})


def test_judging_alone_is_no_pass():
    """Without the other checks' verdicts nothing was looked at twice."""
    arm = engine_arm(plan(), requests=1)
    assert held(arm=replace(arm)).verdict is Verdict.INCONCLUSIVE
