"""Too many alarms and p-values that are too small are noticed, and what chance gives is not."""

import numpy as np
import pytest

from audit.evidence.verdicts import CheckResult, Verdict
from audit.selftest import battery
from audit.selftest.alarms import Alarms, CleanResult, collect
from audit.selftest.scenarios import clean_arms

RNG_SEED = 20


def results(p_values, alarms=0):
    arms = clean_arms(len(p_values))
    return [
        CleanResult(arm, ("law",) if index < alarms else (), {"law": float(p), "law: scores (all)": float(p)})
        for index, (arm, p) in enumerate(zip(arms, p_values, strict=True))
    ]


def uniform(count):
    return np.random.default_rng(RNG_SEED).random(count)


def test_uniform_p_values_are_accepted_and_so_are_conservative_ones():
    for values in (uniform(1000), np.sqrt(uniform(1000)), np.ones(1000)):
        assert collect(results(values)).not_uniform == ()


@pytest.mark.parametrize("count", [200, 1000])
def test_p_values_that_are_too_small_are_noticed(count):
    assert [each.test for each in collect(results(uniform(count) ** 1.5)).not_uniform] == ["law", "law: scores (all)"]


def test_a_handful_of_p_values_is_not_judged():
    assert collect(results(np.zeros(49))).uniformity == ()


@pytest.mark.parametrize(
    ("arms", "alarms", "too_many"), [(1000, 15, False), (1000, 16, True), (60, 3, False), (60, 6, True)]
)
def test_the_rate_is_held_against_what_is_tolerated(arms, alarms, too_many):
    assert Alarms(tuple(results(uniform(arms), alarms)), ()).too_many is too_many


def test_the_parts_of_a_result_are_found_by_name():
    details = {
        "components": [{"name": "tokens ~ p", "stratum": "all", "p": 0.2}, {"name": "mixture, led by x", "p": 0.5}],
        "leak": {"tv": 0.1},
    }
    found = battery.p_values("law", CheckResult(Verdict.CERTIFIED, "", p_value=0.4, details=details))
    assert found == {"law": 0.4, "law: tokens ~ p (all)": 0.2, "law: mixture": 0.5}
