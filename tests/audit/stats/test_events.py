import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.tails import event_deviation, radius


def test_the_bound_fails_no_more_often_than_its_error():
    """1000 runs of 300 trials at error 0.05; the true difference is 0.1 of all tokens."""
    rng = np.random.default_rng(3)
    expected = rng.random(300) * 0.5
    failed = 0
    for _ in range(1000):
        happened = (rng.random(300) < expected + 0.1).astype(float)
        failed += event_deviation(happened, expected, 300, 0.05).bound < 0.1
    assert failed <= binom.ppf(0.999, 1000, 0.05)


def test_trials_without_a_probability_do_not_count():
    found = event_deviation(np.array([1.0, np.nan, 0.0]), np.array([0.5, np.nan, 0.25]), 4, 0.01)
    assert (found.trials, found.difference) == (2, pytest.approx(0.25 / 4))
    assert found.error == pytest.approx(np.sqrt(0.25 + 0.1875) / 4)


def test_nothing_is_bounded_without_tokens():
    assert event_deviation(np.empty(0), np.empty(0), 0, 0.01).bound == 1.0


def test_the_radius_grows_with_the_root_of_the_variance():
    assert radius(400.0, 0.01) < 2.2 * radius(100.0, 0.01)
