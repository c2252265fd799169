import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.acceptance.expected import bernoulli_test, chain_acceptance, coupled_acceptance, match_acceptance
from tests.support.tiers import slow_unless


def pair(seed, vocabulary=9):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(vocabulary, 0.5)), rng.dirichlet(np.full(vocabulary, 0.5))


def plain_formula(p, q):
    both = (p > 0) & (q > 0)
    total = 0.0
    for i in np.flatnonzero(both):
        total += 1.0 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(len(p)))
    return total


@pytest.mark.parametrize("seed", range(6))
def test_coupled_closed_form_equals_the_double_sum(seed):
    p, q = pair(seed)
    assert coupled_acceptance(p, q) == pytest.approx(plain_formula(p, q), rel=1e-12)


def test_coupled_closed_form_with_empty_cells():
    p, q = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.6, 0.4, 0.0])
    assert coupled_acceptance(p, q) == pytest.approx(plain_formula(p, q), rel=1e-12)
    assert coupled_acceptance(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0
    assert coupled_acceptance(p, p) == pytest.approx(1.0)


def test_coupled_closed_form_by_simulation():
    p, q = pair(3)
    rng, n = np.random.default_rng(4), 200_000
    noise = -np.log(-np.log(rng.random((n, len(p)))))
    agree = np.mean((np.log(p) + noise).argmax(axis=1) == (np.log(q) + noise).argmax(axis=1))
    assert agree == pytest.approx(coupled_acceptance(p, q), abs=4 * 0.5 / np.sqrt(n))


def test_rejection_and_match_by_hand():
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.2, 0.6]])
    assert chain_acceptance(p, q)[0] == pytest.approx(0.6)
    assert match_acceptance(p, q)[0] == pytest.approx(0.28)


def test_small_counts_are_judged_by_the_exact_law():
    accepted = np.zeros(20, dtype=bool)
    accepted[:9] = True
    test = bernoulli_test(accepted, np.full(20, 0.2))
    assert test.p == pytest.approx(2 * binom.sf(8, 20, 0.2))
    assert (test.observed, test.expected) == (9, pytest.approx(4.0))


@pytest.mark.medium
@pytest.mark.parametrize("n", slow_unless([50, 1000], [50]))
def test_false_alarm_rate_is_at_most_nominal(n):
    rng, runs = np.random.default_rng(n), 1500
    chance = rng.beta(2, 1, size=n)
    false = sum(bernoulli_test(rng.random(n) < chance, chance).p < 0.02 for _ in range(runs))
    assert binom.ppf(0.0005, runs, 0.008) <= false <= binom.ppf(0.9995, runs, 0.02)


def test_interval_covers_the_difference():
    rng = np.random.default_rng(8)
    chance = rng.random(400)
    true = np.minimum(1.0, chance + 0.05)
    missed = 0
    for _ in range(300):
        test = bernoulli_test(rng.random(400) < true, chance)
        missed += not test.low <= float(np.mean(true - chance)) <= test.high
    assert missed <= binom.ppf(0.9995, 300, 0.01)


@pytest.mark.parametrize(("flag", "chance"), [(True, 0.0), (False, 1.0)])
def test_impossible_outcomes_need_no_sample(flag, chance):
    assert bernoulli_test(np.array([flag, True]), np.array([chance, 0.5])).p == 0.0


def test_nothing_observed_is_no_evidence():
    assert bernoulli_test(np.empty(0, dtype=bool), np.empty(0)).p == 1.0
