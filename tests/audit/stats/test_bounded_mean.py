import time

import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.binomial import upper_bound
from audit.stats.bounded_mean import bernstein_upper, betting_interval, betting_lower, betting_upper
from tests.support.tiers import fast_first

UPPER = {"bernstein": bernstein_upper, "betting": betting_upper}
LAWS = {
    "noise": (lambda rng, n: rng.beta(0.5, 200.0, n), 0.5 / 200.5),
    "rare": (lambda rng, n: (rng.random(n) < 0.01).astype(float), 0.01),
    "spikes": (lambda rng, n: np.where(rng.random(n) < 0.002, 1.0, 1e-6), 0.002 + 0.998e-6),
    "fair": (lambda rng, n: (rng.random(n) < 0.5).astype(float), 0.5),
}


@pytest.mark.medium
@pytest.mark.parametrize("law", fast_first(LAWS, 2))
@pytest.mark.parametrize("method", UPPER)
def test_bounds_cover(method, law):
    """500 samples of 400 numbers at 95 %; 0.9995 quantile of the binomial law of the misses."""
    draw, mean = LAWS[law]
    rng = np.random.default_rng(len(method) * 100 + len(law))
    samples = [draw(rng, 400) for _ in range(500)]
    allowed = binom.ppf(0.9995, 500, 0.05)
    assert sum(UPPER[method](x, 0.95) < mean for x in samples) <= allowed
    if method == "betting":
        assert sum(betting_lower(x, 0.95) > mean for x in samples) <= allowed


def test_betting_misses_when_the_error_probability_is_not_counted():
    """The coverage test can fail: the same bound at 60 % misses far more often than 5 %."""
    rng = np.random.default_rng(2)
    draw, mean = LAWS["fair"]
    assert sum(betting_upper(draw(rng, 400), 0.6) < mean for _ in range(300)) > binom.ppf(0.9995, 300, 0.05)


def test_betting_is_tighter_where_the_numbers_vary_little():
    x = LAWS["noise"][0](np.random.default_rng(3), 20_000)
    found = {name: upper(x, 0.995) - x.mean() for name, upper in UPPER.items()}
    assert found["betting"] < found["bernstein"]


def test_betting_is_near_the_exact_bound_for_counts():
    x = (np.random.default_rng(4).random(20_000) < 0.001).astype(float)
    exact = upper_bound(int(x.sum()), 20_000, 0.995)
    assert exact - 1e-4 < betting_upper(x, 0.995) < 1.3 * exact


def test_all_zeros_cost_little_more_than_log_over_n():
    assert -np.log(0.005) / 1e4 < betting_upper(np.zeros(10_000), 0.995) < 1.5 * -np.log(0.005) / 1e4


def test_lower_and_upper_mirror_each_other():
    x = np.random.default_rng(5).beta(2.0, 5.0, 1000)
    assert betting_lower(1.0 - x, 0.9) == pytest.approx(1.0 - betting_upper(x, 0.9))
    interval = betting_interval(x, 0.9)
    assert interval.low == betting_lower(x, 0.95) < x.mean() < interval.high == betting_upper(x, 0.95)


def test_the_bound_is_rejected_and_a_little_less_is_not():
    """Against brute force: the wealth process written out for single means."""
    x = np.random.default_rng(6).beta(2.0, 30.0, 300)
    found, target = betting_upper(x, 0.99), np.log(100)
    assert brute_wealth(x, found, target) >= target
    assert brute_wealth(x, found - 0.011 * (found - x.mean()), target) < target


def brute_wealth(x, mean, target):
    wealth, best, total, squares = 0.0, -np.inf, 0.5, 0.25
    for t, value in enumerate(x, start=1):
        bet = min(np.sqrt(2 * target / (squares / t * len(x))), 0.75 / (1 - mean))
        wealth += np.log(1 + bet * (mean - value))
        best = max(best, wealth)
        total += value
        squares += (value - total / (t + 1)) ** 2
    return best


@pytest.mark.parametrize("method", UPPER)
def test_without_numbers_nothing_is_known(method):
    assert UPPER[method](np.empty(0)) == 1.0
    assert betting_lower(np.empty(0)) == 0.0


@pytest.mark.parametrize("bad", [1.5, -0.1, np.nan])
@pytest.mark.parametrize("method", UPPER)
def test_numbers_outside_the_unit_interval_are_refused(method, bad):
    with pytest.raises(ValueError, match=r"do not lie in \[0, 1\]"):
        UPPER[method](np.array([0.5, bad]))


@pytest.mark.medium
def test_a_million_numbers_take_seconds_at_most():
    """0.5 s on one core where this was written; the limit leaves room for a busy machine."""
    x = np.random.default_rng(7).beta(0.5, 200.0, 1_000_000)
    began = time.process_time()
    assert betting_upper(x, 0.995) < x.mean() + 2e-5
    assert time.process_time() - began < 2.0
