import numpy as np
import pytest
from scipy.stats import beta, binom

from audit.stats.anytime.sequences import bernoulli, bounded_mean, drifting_lower, drifting_mean, normal_mixture
from tests.support.tiers import fast_first

RUNS, LENGTH = 500, 500
ALLOWED = binom.ppf(0.9995, RUNS, 0.05)
"""Ever missing, watched at every time, 95 %: 0.9995 quantile of the binomial law."""


def ever_missed(sequence, mean):
    return bool(np.any((sequence.low > mean) | (sequence.high < mean)))


@pytest.mark.parametrize("draw", ["beta", "rare", "fair"])
def test_bounded_mean_covers_at_all_times(draw):
    rng, missed = np.random.default_rng(1), 0
    mean = {"beta": 2 / 22, "rare": 0.02, "fair": 0.5}[draw]
    for _ in range(RUNS):
        x = rng.beta(2.0, 20.0, LENGTH) if draw == "beta" else (rng.random(LENGTH) < mean).astype(float)
        missed += ever_missed(bounded_mean(x, 0.95), mean)
    assert missed <= ALLOWED


@pytest.mark.parametrize("rate", fast_first([0.01, 0.3, 0.999]))
@pytest.mark.slow
def test_bernoulli_covers_at_all_times(rate):
    rng = np.random.default_rng(2)
    assert sum(ever_missed(bernoulli(rng.random(LENGTH) < rate, 0.95), rate) for _ in range(RUNS)) <= ALLOWED


@pytest.mark.parametrize("planned", [20, 500])
def test_normal_mixture_covers_at_all_times(planned):
    rng = np.random.default_rng(3)
    runs = (normal_mixture(0.3 + 2.0 * rng.standard_normal(LENGTH), 2.0, 0.95, planned) for _ in range(RUNS))
    assert sum(ever_missed(each, 0.3) for each in runs) <= ALLOWED


def test_a_fixed_time_interval_watched_over_time_does_not_cover():
    """Why these exist: five nominal percent become far more when one looks at every number."""
    rng, missed = np.random.default_rng(4), 0
    times = np.arange(1, LENGTH + 1)
    for _ in range(RUNS):
        centre = np.cumsum(rng.standard_normal(LENGTH)) / times
        missed += bool(np.any(np.abs(centre) > 1.96 / np.sqrt(times)))
    assert missed > 3 * ALLOWED


@pytest.mark.medium
def test_bernoulli_ends_are_where_the_mixture_first_reaches_its_threshold():
    """By quadrature: the mean over the prior of the likelihood ratio against each end, its maximum over time."""
    hits = np.random.default_rng(5).random(200) < 0.2
    found = bernoulli(hits, 0.99).at(200)
    grid = (np.arange(20_000) + 0.5) / 20_000
    prior = beta.pdf(grid, 0.5, 0.5)
    for end in (found.low, found.high):
        counts = np.cumsum(hits)
        best = max(
            np.mean(prior * (grid / end) ** k * ((1 - grid) / (1 - end)) ** (n - k)) for n, k in enumerate(counts, 1)
        )
        assert best == pytest.approx(100.0, rel=0.02)


def test_no_success_leaves_the_lower_end_at_zero():
    assert bernoulli(np.zeros(50, dtype=bool)).at(50).low == 0.0
    assert bernoulli(np.ones(50, dtype=bool)).at(50).high == 1.0


def test_intervals_shrink_and_never_grow():
    x = np.random.default_rng(6).beta(2.0, 20.0, 5000)
    found = bounded_mean(x)
    assert np.all(np.diff(found.low) >= 0)
    assert np.all(np.diff(found.high) <= 0)
    assert found.at(5000).high - found.at(5000).low < 0.02


def drifting(rng, length):
    """Each mean depends on the number before: no two are independent. Returns numbers in [-1, 1] and their means."""
    x, means, last = np.empty(length), np.empty(length), 0.0
    for t in range(length):
        means[t] = 0.2 + 0.5 * last * np.cos(t / 30)
        last = x[t] = 1.0 if rng.random() < (1 + means[t]) / 2 else -1.0
    return x, means


@pytest.mark.slow
def test_drifting_mean_covers_at_a_stopping_time_chosen_to_hurt():
    """Stops when the average looks largest against its means, among all times from 50."""
    rng, missed = np.random.default_rng(7), 0
    for _ in range(300):
        x, means = drifting(rng, 200)
        gap = np.cumsum(x - means) / np.sqrt(np.arange(1, 201))
        worst = 50 + int(np.argmax(np.abs(gap[49:])))
        interval = drifting_mean(x[:worst], -1.0, 1.0, 0.95)
        missed += not interval.low <= np.mean(means[:worst]) <= interval.high
    assert missed <= binom.ppf(0.9995, 300, 0.05)


def test_drifting_mean_is_narrow_for_numbers_that_vary_little():
    x = 0.3 + 0.01 * np.random.default_rng(8).uniform(-1, 1, 20_000)
    found = drifting_mean(x, -1.0, 1.0)
    assert found.low < 0.3 < found.high
    assert found.high - found.low < 0.005


def test_without_numbers_nothing_is_known():
    found = drifting_mean(np.empty(0), -1.0, 1.0)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert drifting_lower(np.empty(0)) == 0.0
    assert len(bounded_mean(np.empty(0)).low) == len(bernoulli(np.empty(0, dtype=bool)).low) == 0


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        bounded_mean(np.array([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"\[-1.0, 1.0\]"):
        drifting_mean(np.array([2.0]), -1.0, 1.0)
