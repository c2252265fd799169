import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.bounded_mean import drifting_lower, drifting_mean


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


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"\[-1.0, 1.0\]"):
        drifting_mean(np.array([2.0]), -1.0, 1.0)
