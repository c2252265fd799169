"""Faults that lose a parameter are found and named; what computes rightly and decides wrongly is not."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.honoured.causes import TokenComparison, cause
from audit.checks.honoured.check import CHECK
from audit.evidence.verdicts import Verdict
from audit.selftest.run_arm import gather
from audit.selftest.scenarios import suite_of
from engine import faults
from engine.core.structured import constraint_of
from engine.core.types import RecordLevel, SamplingParams
from tests.support.tiers import fast_first, slow_unless

SEEDS = (0, 1, 2)
DRAFTED = "drafted rows are not those of the request's parameters"
NAMED = {
    "temperature_ignored_on_drafted_rows": "as if temperature were not set",
    "truncation_missing_on_drafted_rows": "as if top_k were not set",
    "penalties_missing_on_drafted_rows": "as if no penalty were set",
    "bonus_not_warped": "as if no parameter were set",
    "penalties_per_step": "no parameter that was left out explains them",
}


def judged(name, seed, scenario=None, level=RecordLevel.FULL, **params):
    scenario = scenario or faults.load(name).scenario
    suite = suite_of(scenario, name, seed, 512, ["honoured"])
    suite = replace(suite, arms=tuple(replace(arm, record=level) for arm in suite.arms))
    return evaluate(CHECK, gather(suite), params)


@pytest.mark.medium
@pytest.mark.parametrize("seed", fast_first(SEEDS))
@pytest.mark.parametrize("name", slow_unless(NAMED, ["penalties_per_step", "truncation_missing_on_drafted_rows"]))
def test_a_lost_parameter_is_found_and_named(name, seed):
    found = judged(name, seed)
    assert found.verdict is Verdict.FAULT
    assert NAMED[name] in found.summary


@pytest.mark.medium
@pytest.mark.parametrize("seed", fast_first(SEEDS))
@pytest.mark.parametrize("level", fast_first([RecordLevel.TOPK, RecordLevel.FULL]))
@pytest.mark.parametrize("name", slow_unless(NAMED, ["bonus_not_warped", "penalties_missing_on_drafted_rows"]))
def test_a_clean_engine_has_no_wrong_probability(name, level, seed):
    found = judged(None, seed, faults.load(name).scenario, level)
    assert found.verdict is not Verdict.FAULT
    assert found.statistic == 0.0


@pytest.mark.medium
def test_drafted_and_other_rows_are_told_apart():
    kinds = {each["rows"]: each for each in judged("bonus_not_warped", 0).details["kinds"]}
    assert kinds["drafted"]["wrong"] == 0
    assert kinds["other"]["wrong"] == kinds["other"]["n"] > 0


@pytest.mark.medium
def test_cells_see_the_emitted_token_and_name_no_parameter():
    found = judged("temperature_ignored_on_drafted_rows", 0, level=RecordLevel.TOPK)
    assert found.verdict is Verdict.FAULT
    assert "record: full tells which parameter" in found.summary


@pytest.mark.medium
def test_a_wrong_decision_by_right_probabilities_is_not_this_checks():
    assert judged("resample_from_p", 0).statistic == 0.0


@pytest.mark.medium
def test_greedy_arms_and_records_without_rows_do_not_apply():
    greedy = replace(
        faults.load("resample_from_p").scenario, sampling=faults.load("greedy_accepts_top2").scenario.sampling
    )
    assert judged(None, 0, greedy).verdict is Verdict.NOT_RUN
    assert judged("resample_from_p", 0, level=RecordLevel.SCALARS).verdict is Verdict.NOT_RUN


def test_a_minimum_that_lasts_too_long_is_named():
    """Five tokens are out and four are asked for: an end token is masked nevertheless."""
    sampling = SamplingParams(temperature=1.0, min_tokens=4, max_new_tokens=9)
    row = np.array([2.0, 1.0, 0.0])
    masked = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    asked = np.exp(row) / np.exp(row).sum()
    place = TokenComparison("r", 1, 1, float(masked[0]), float(asked[1]), sampling, row, (1,) * 6, 1, (0,))
    assert place.under(sampling) == pytest.approx(place.asked)
    assert cause([place]) == "as if the answer were still shorter than min_tokens"


def test_a_law_without_the_grammars_mask_is_named():
    """The mask is on record, and the engine's own p is that of the row without it."""
    sampling = SamplingParams(temperature=1.0, structured=constraint_of({"regex": "[ab]"}))
    row, allowed = np.array([2.0, 1.0, 0.0]), np.array([False, True, True])
    free, masked = np.exp(row) / np.exp(row).sum(), np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    place = TokenComparison("r", 1, 1, float(free[1]), float(masked[0]), sampling, row, (1,), 1, (0,), allowed)
    assert place.under(sampling) == pytest.approx(place.asked)
    assert cause([place]) == "as if structured were not set"
