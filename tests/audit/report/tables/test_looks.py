"""What is left of an undecided run: every check that is not decided, and why in a few words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from audit.evidence.records import Level
from audit.evidence.verdicts import LACKING, Verdict
from audit.report.tables.looks import LONGEST, left_lines
from audit.store import StoredCheck

DONE = StoredCheck(
    arm="chain",
    check="replay",
    claim="law",
    level=Level.L4,
    verdict=Verdict.CERTIFIED,
    n=1,
    statistic=None,
    p_value=None,
    effect=None,
    bound=None,
    margin=None,
    summary="fine",
    findings=(),
    details={},
    created_at=datetime.now(UTC),
)
OPEN = replace(DONE, check="law", verdict=Verdict.INCONCLUSIVE)
NOT_RUN = replace(DONE, check="anchor", verdict=Verdict.NOT_RUN)


def test_a_bound_beyond_its_margin_is_the_reason():
    short = replace(OPEN, bound=0.0712345, margin=0.06, summary="a long story")
    assert left_lines([DONE, short]) == ["left in chain: law (bound 0.0712, margin 0.06)"]


def test_a_check_that_examined_too_little_names_the_situation():
    summary = "examined too rarely: bonus_token 3 of 10; to reach it, use a better draft"
    held_back = replace(OPEN, bound=0.07, margin=0.06, summary=summary, details={"short_of": {"bonus_token": 3}})
    assert left_lines([held_back]) == ["left in chain: law (examined too rarely: bonus_token 3 of 10)"]


def test_other_reasons_are_the_first_words_of_the_summary():
    within = replace(OPEN, bound=0.01, margin=0.06, summary="12 tokens are fewer than 500; no departure")
    wordy = replace(OPEN, arm="other", summary="word " * 100)
    first, second = left_lines([within, wordy])
    assert first == "left in chain: law (12 tokens are fewer than 500)"
    assert second.endswith(" ...)")
    assert len(second) <= LONGEST + len("left in other: law ()")


def test_checks_without_evidence_are_left_and_those_without_a_claim_are_not():
    lacking = replace(NOT_RUN, summary="needs evidence L3, the arm has L1", details={LACKING: True})
    assert left_lines([DONE, lacking]) == ["left in chain: anchor (not run: needs evidence L3, the arm has L1)"]
    assert left_lines([DONE, NOT_RUN]) == []
    assert left_lines([NOT_RUN]) == ["left in chain: no check applies to this arm"]


def test_arms_with_a_fault_are_decided():
    assert left_lines([replace(DONE, verdict=Verdict.FAULT), replace(OPEN)]) == []
