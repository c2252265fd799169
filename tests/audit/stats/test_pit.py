import numpy as np
import pytest
from scipy.stats import binom, chi2, kstest

from audit.stats.pit import legendre, pit, smooth_test


def draws(seed, n, vocabulary=12):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(vocabulary, 0.3), size=n)
    token = np.array([rng.choice(vocabulary, p=row) for row in p])
    return rng, p, token


def test_pit_by_hand():
    p = np.array([[0.2, 0.5, 0.3]])
    # by rank: 1, 2, 0 - token 2 begins after 0.5
    assert pit(p, p, np.array([2]), np.array([0.5]))[0] == pytest.approx(0.65)
    ids = -np.arange(3.0)[None]
    assert pit(p, ids, np.array([2]), np.array([0.0]))[0] == pytest.approx(0.7)


def test_equal_keys_go_by_id():
    p = np.full((1, 4), 0.25)
    assert pit(p, p, np.array([3]), np.array([0.0]))[0] == pytest.approx(0.75)


@pytest.mark.parametrize("order", ["rank", "id", "other"])
def test_pit_is_uniform_in_any_predictable_order(order):
    rng, p, token = draws(3, 4000)
    keys = {"rank": p, "id": np.broadcast_to(-np.arange(12.0), p.shape), "other": rng.random(p.shape)}[order]
    assert kstest(pit(p, keys, token, rng.random(len(token))), "uniform").pvalue > 1e-3


def test_legendre_polynomials_are_orthonormal():
    grid = (np.arange(20000) + 0.5) / 20000
    values = legendre(grid)
    assert values.T @ values / len(grid) == pytest.approx(np.eye(4), abs=1e-6)


@pytest.mark.parametrize(("n", "runs"), [(40, 600), (800, 600)])
def test_false_alarm_rate_is_nominal(n, runs):
    rng = np.random.default_rng(n)
    false = sum(smooth_test(rng.random(n), rng, 2000).p < 0.05 for _ in range(runs))
    assert binom.ppf(0.0005, runs, 0.05) <= false <= binom.ppf(0.9995, runs, 0.05)


def test_small_samples_are_simulated_where_it_matters_only():
    rng = np.random.default_rng(1)
    assert smooth_test(np.full(50, 0.9), rng).simulated
    assert not smooth_test((np.arange(50) + 0.5) / 50, rng).simulated
    assert not smooth_test(np.full(500, 0.9), rng).simulated


def test_simulated_p_is_never_zero():
    assert smooth_test(np.full(50, 0.99), np.random.default_rng(1), 1000).p == pytest.approx(1 / 1001)


def test_simulated_law_is_near_its_limit_just_below_the_switch():
    # a slightly lifted sample, whose chi-square p is a few percent
    u = np.concatenate([(np.arange(440) + 0.5) / 440, np.full(59, 0.62)])
    test = smooth_test(u, np.random.default_rng(6))
    assert test.simulated
    assert sum(each**2 for each in test.components) == pytest.approx(test.statistic)
    limit = chi2.sf(test.statistic, 4)
    assert 0.005 < limit < 0.09
    # 4 Monte Carlo standard errors and the finite-sample difference
    assert test.p == pytest.approx(limit, abs=4 * np.sqrt(limit / 10_000) + 0.004)


def test_repeated_tokens_of_the_wrong_law_are_found():
    rng, p, _ = draws(9, 600)
    top = p.argmax(axis=1)
    assert smooth_test(pit(p, p, top, rng.random(600)), rng).p < 1e-6


def test_without_numbers_there_is_no_evidence():
    assert smooth_test(np.empty(0), np.random.default_rng(1)).p == 1.0
