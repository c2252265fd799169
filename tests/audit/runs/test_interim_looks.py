"""What looks may spend, shown by simulation: however often one looks, false alarms stay at their level."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from audit.checks import REGISTRY, load
from audit.runs.interim_looks import (
    InterimLook,
    InterimResult,
    at_interim_look,
    interim_look_lines,
    interim_results,
    share,
    spent,
)
from audit.stats.acceptance.expected import bernoulli_test
from audit.store import RunStatus, StoredEvent

RUNS, LOOKS, PER_LOOK, ALPHA = 1500, 10, 60, 0.1


def test_shares_add_up_to_one():
    assert share(1) == pytest.approx(0.6079, abs=1e-4)
    assert spent(1000) < 1.0
    assert spent(1000) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_error_probability_of_a_check_is_spent(name):
    check = load(name)
    params = {**check.defaults, **at_interim_look(check, {}, InterimLook(3))}
    for key, value in check.defaults.items():
        if key == "alpha":
            assert params[key] == pytest.approx(value * share(3))
        elif key == "confidence":
            assert 1.0 - params[key] == pytest.approx((1.0 - value) * share(3))
        else:
            assert params[key] == value


def test_a_suites_own_levels_are_spent_and_anytime_checks_keep_theirs():
    check = load("law")
    assert at_interim_look(check, {"alpha": 0.2}, InterimLook(2))["alpha"] == pytest.approx(0.2 * share(2))
    assert at_interim_look(replace(check, anytime=True), {"alpha": 0.2}, InterimLook(2)) == {"alpha": 0.2}
    assert at_interim_look(check, {"alpha": 0.2}, None) == {"alpha": 0.2}


def looks_of_a_clean_arm(generator):
    """[LOOKS] tests of all that was drawn until then, of tokens that are kept as often as the theory says."""
    chances = generator.uniform(0.2, 0.9, size=LOOKS * PER_LOOK)
    kept = generator.random(len(chances)) < chances
    sizes = range(PER_LOOK, len(chances) + 1, PER_LOOK)
    return [
        (
            bernoulli_test(kept[:n], chances[:n], 1.0 - ALPHA * share(look)),
            bernoulli_test(kept[:n], chances[:n], 1.0 - ALPHA),
        )
        for look, n in enumerate(sizes, start=1)
    ]


@pytest.mark.slow
def test_false_alarms_and_failing_bounds_stay_at_their_level():
    generator = np.random.default_rng(3)
    alarms = unspent_alarms = misses = unspent_misses = 0
    for _ in range(RUNS):
        tests = looks_of_a_clean_arm(generator)
        alarms += any(spending.p < ALPHA * share(k) for k, (spending, _) in enumerate(tests, start=1))
        unspent_alarms += any(plain.p < ALPHA for _, plain in tests)
        # the truth is a difference of 0: an interval that leaves it out would certify what is not so
        misses += any(not spending.low <= 0.0 <= spending.high for spending, _ in tests)
        unspent_misses += any(not plain.low <= 0.0 <= plain.high for _, plain in tests)
    # three standard errors of a share of 0.1 in 1500 runs are 0.023
    assert alarms / RUNS <= ALPHA + 0.023
    assert misses / RUNS <= ALPHA + 0.023
    # and without spending both are far off: this simulation can fail
    assert unspent_alarms / RUNS > 2 * ALPHA
    assert unspent_misses / RUNS > 2 * ALPHA


def test_looks_are_read_back_from_events():
    first = InterimResult(1, share(1), spent(1), 900, ("chain",), 3, None, 1, ("chain",))
    second = InterimResult(2, share(2), spent(2), 1800, (), 0, "every bound is reached", 2, ())
    details = ["started", first.detail(), "look at this", second.detail()]
    events = [StoredEvent(RunStatus.RUNNING, datetime.now(UTC), detail) for detail in details]
    assert interim_results(events) == (first, second)
    assert interim_look_lines(events) == [
        "decided after 1800 tokens in 2 looks, 0.76 of alpha spent: every bound is reached"
    ]
    assert interim_look_lines(events[:2]) == []


def test_a_look_recorded_without_repetitions_followed_rounds_of_one_each():
    detail = 'look {"look": 3, "share": 0.07, "spent": 0.8, "tokens": 900, "undecided": ["a"], "exit_code": 3'
    old = StoredEvent(RunStatus.RUNNING, datetime.now(UTC), detail + ', "stopped": null}')
    assert interim_results([old])[0].repetitions == 3
    assert interim_results([old])[0].open == ("a",)
