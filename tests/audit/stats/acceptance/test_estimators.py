"""Estimators of acceptance against numbers computed by hand, on requests where they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.stats.acceptance.estimators import ESTIMATORS, DraftTotals, Estimator, draft_sums, estimates

LONG = DraftTotals(steps=3, drafted=10, accepted=9, emitted=12)
SHORT = DraftTotals(steps=1, drafted=2, accepted=0, emitted=1)
SILENT = DraftTotals(steps=0, drafted=0, accepted=0, emitted=5)
SERVER = DraftTotals(steps=5, drafted=20, accepted=10)
PAGE = Path(__file__).parents[4] / "docs" / "statistics.md"


def values(requests, counters=None):
    return {one.estimator: one.value for one in estimates(draft_sums(requests), counters)}


def test_the_estimators_differ_as_computed_by_hand():
    assert values([LONG, SHORT, SILENT], SERVER) == {
        Estimator.TOKEN_RATE: 9 / 12,
        Estimator.REQUEST_RATE: pytest.approx(0.45),
        Estimator.TOKEN_LENGTH: 1 + 9 / 4,
        Estimator.REQUEST_LENGTH: 2.5,
        Estimator.COUNTER_RATE: 0.5,
        Estimator.COUNTER_LENGTH: 3.0,
    }


def test_requests_without_a_draft_weigh_nothing():
    found = estimates(draft_sums([LONG, SHORT, SILENT]))
    assert [one.requests for one in found] == [2, 2, 2, 2]
    assert values([LONG, SHORT, SILENT]) == values([LONG, SHORT])
    assert estimates(draft_sums([SILENT])) == ()


def test_uncounted_requests_leave_the_counters_only():
    assert {one.estimator for one in estimates(None, SERVER)} == {Estimator.COUNTER_RATE, Estimator.COUNTER_LENGTH}


def test_lengths_need_the_steps_of_every_request():
    unknown = DraftTotals(steps=None, drafted=4, accepted=2)
    assert set(values([LONG, unknown])) == {Estimator.TOKEN_RATE, Estimator.REQUEST_RATE}
    assert set(values([], DraftTotals(None, 4, 2))) == {Estimator.COUNTER_RATE}


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((1, 4, 5, 9), "5 accepted tokens are more than the 4 drafted ones"),
        ((1, 4, 4, 3), "4 accepted tokens are more than the 3 emitted ones"),
        ((5, 4, 0, 9), "5 steps with a draft are more than the 4 drafted tokens"),
        ((1, 4, -1, 9), "a count is negative"),
    ],
)
def test_counts_that_contradict_one_another_are_refused(counts, words):
    with pytest.raises(ValueError, match=words):
        DraftTotals(*counts)


def test_the_page_defines_every_estimator_with_its_formula_and_aiperfs_name():
    lines = PAGE.read_text("utf-8").splitlines()
    for one in ESTIMATORS:
        (line,) = [line for line in lines if line.startswith(f"| `{one.estimator}` |")]
        assert one.formula.partition(" over ")[0] in line
        assert f"| {one.unit} |" in line
        assert (one.aiperf or "none") in line


def test_every_estimator_is_defined_once():
    assert [one.estimator for one in ESTIMATORS] == list(Estimator)
