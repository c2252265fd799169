"""Parity of instances: false alarms on clean simulated sets within nominal, planted changes found. Fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from audit.stats.acceptance.drift import AcceptanceCounts
from audit.stats.acceptance.instances import index_trend, pair_changes, silent_end
from audit.stats.equivalence import EquivalenceDecision, decide

PROMPTS = 40
DRAFTED = 60
MARGIN = 0.05
ALPHA = 0.05
SETS = 400


def instance(generator, rates, shift=0.0):
    """Drafts of one instance: every prompt has a rate of its own, the same in all instances."""
    accepted = generator.binomial(DRAFTED, np.clip(rates + shift, 0, 1))
    return AcceptanceCounts(accepted.astype(float), np.full(PROMPTS, float(DRAFTED)), np.arange(PROMPTS))


def verdicts(found):
    return {decide(one.change.low, one.change.high, MARGIN) for one in found}


@pytest.mark.medium
def test_intervals_of_all_pairs_hold_together_at_the_stated_rate():
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(SETS):
        rates = generator.beta(4, 4, PROMPTS)
        found = pair_changes([instance(generator, rates) for _ in range(4)], ALPHA)
        assert len(found) == 6
        missed += any(not one.change.low <= 0 <= one.change.high for one in found)
    # nominal 0.05, standard error 0.011 on 400 sets
    assert missed / SETS <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / SETS)


def test_a_planted_change_is_a_fault_and_a_clean_set_never():
    generator = np.random.default_rng(2)
    faults = clean = 0
    for _ in range(60):
        rates = generator.beta(4, 4, PROMPTS) * 0.6 + 0.2
        parts = [instance(generator, rates, shift) for shift in (0.0, 0.0, -0.15)]
        faults += EquivalenceDecision.FAULT in verdicts(pair_changes(parts, ALPHA))
        clean += EquivalenceDecision.FAULT in verdicts(pair_changes(parts[:2], ALPHA))
    assert faults >= 57
    assert clean == 0


def test_equal_instances_have_a_change_of_zero_exactly():
    one = instance(np.random.default_rng(3), np.full(PROMPTS, 0.5))
    assert [(each.change.low, each.change.high) for each in pair_changes([one, one, one], 0.01)] == [(0.0, 0.0)] * 3


def trend(generator, rates, slope=0.0):
    n = len(rates)
    drafted = generator.integers(10, 60, n).astype(float)
    place = np.linspace(-0.5, 0.5, n)
    accepted = generator.binomial(drafted.astype(int), np.clip(rates + slope * place, 0, 1)).astype(float)
    # two domains, one after the other, whose rates differ: that is no trend
    stratum = (np.arange(n) >= n // 2).astype(np.int64)
    return index_trend(accepted, drafted, stratum, np.arange(n), generator, 0.95, replicates=199)


def domains(generator, n=60):
    return np.concatenate([generator.beta(2, 6, n // 2), generator.beta(6, 2, n // 2)])


@pytest.mark.medium
def test_a_run_without_a_trend_alarms_at_the_stated_rate():
    generator = np.random.default_rng(4)
    alarms = sum(trend(generator, domains(generator)).p <= ALPHA for _ in range(SETS))
    assert alarms / SETS <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / SETS)
    assert alarms > 0


def test_a_planted_drift_within_domains_is_found():
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(40):
        rates = np.concatenate([generator.uniform(0.3, 0.4, 30), generator.uniform(0.6, 0.7, 30)])
        found += trend(generator, rates, slope=-0.6).p <= 0.01
    assert found >= 38


def test_a_trend_needs_two_requests_of_a_stratum():
    generator = np.random.default_rng(6)
    assert index_trend(np.ones(2), np.ones(2), np.array([0, 1]), np.array([0, 1]), generator) is None
    assert index_trend(np.zeros(4), np.zeros(4), np.zeros(4, dtype=np.int64), np.arange(4), generator) is None


@pytest.mark.parametrize(
    ("drafting", "trailing", "p"),
    [("1111", 0, 1.0), ("1110", 1, 1 / 4), ("0110", 1, 2 / 4), ("1100", 2, 2 / 4 * 1 / 3), ("0000", 4, 1.0)],
)
def test_the_chance_of_a_silent_end_is_that_of_its_permutations(drafting, trailing, p):
    found = silent_end(np.array([one == "1" for one in drafting]))
    assert (found.trailing, found.silent) == (trailing, drafting.count("0"))
    assert found.p == pytest.approx(p)


def test_a_silent_end_alarms_at_most_at_the_stated_rate():
    generator = np.random.default_rng(7)
    drafting = np.arange(40) >= 12
    alarms = sum(silent_end(generator.permutation(drafting)).p <= ALPHA for _ in range(2000))
    assert 0 < alarms / 2000 <= ALPHA
