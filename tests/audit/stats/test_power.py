import numpy as np
import pytest
from scipy.stats import binom, norm

from audit.stats.paired import PairCounts, tango_upper
from audit.stats.power import (
    SampleSize,
    bernoulli_need,
    bound_need,
    bound_width,
    detectable_shift,
    non_inferiority_need,
    replay_effect,
    replay_need,
    score_need,
    zero_need,
)


def share(rejects, runs):
    return sum(rejects(np.random.default_rng(seed)) for seed in range(runs)) / runs


def test_replay_meets_the_first_violation():
    need = replay_need(0.01)
    assert need == SampleSize(230, "decisions", 0.01, 0.0, 0.9)
    assert 1 - 0.99**230 >= 0.9 > 1 - 0.99**229
    assert replay_effect(230) == pytest.approx(0.01, rel=0.01)
    assert replay_need(1.0).units == 1
    assert replay_effect(0) == 1.0


def test_score_need_scales_as_the_square():
    need = score_need(0.01, 0.05, 0.2)
    assert detectable_shift(0.005) * np.sqrt(need.units * 0.05) / (need.units * 0.2) == pytest.approx(0.01, rel=1e-4)
    assert score_need(0.001, 0.05, 0.2).units == pytest.approx(100 * need.units, rel=1e-3)


@pytest.mark.medium
def test_score_power_by_simulation():
    p, q, leak = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4]), 0.2
    score = q / (p + q)
    mean, variance = p @ score, p @ score**2 - (p @ score) ** 2
    n = score_need(leak, variance, q @ score - mean).units

    def rejects(rng):
        token = rng.choice(3, size=n, p=(1 - leak) * p + leak * q)
        return abs(np.sum(score[token] - mean)) > norm.isf(0.005) * np.sqrt(n * variance)

    # the variance under the leak is a little larger than under p
    assert share(rejects, 1000) == pytest.approx(0.9, abs=0.03)


def exact_power(trials, expected, actual):
    """Of the doubled binomial test at 0.01."""
    counts = np.arange(trials + 1)
    doubled = 2 * np.minimum(binom.cdf(counts, trials, expected), binom.sf(counts - 1, trials, expected))
    return binom.pmf(counts, trials, actual)[doubled <= 0.01].sum()


@pytest.mark.parametrize(("expected", "effect"), [(0.7, 0.03), (0.5, -0.05), (0.1, 0.02)])
def test_bernoulli_need_against_the_exact_power(expected, effect):
    need = bernoulli_need(expected, effect)
    assert exact_power(need.units, expected, expected + effect) == pytest.approx(0.9, abs=0.02)
    assert exact_power(need.units, expected, expected) <= 0.01


@pytest.mark.medium
def test_non_inferiority_need_is_the_published_size_and_holds():
    assert non_inferiority_need(0.005, 0.01).units == 651
    assert non_inferiority_need(0.05, 0.01).units in (6508, 6509)
    need = non_inferiority_need(0.1, 0.05)

    def rejects(rng):
        worse, better, _ = rng.multinomial(need.units, [0.05, 0.05, 0.9])
        return tango_upper(PairCounts(need.units, worse, better)) <= 0.05

    # Tango's variance is that at the margin: it asks for a little more
    assert 0.82 <= share(rejects, 1000) <= 0.93


def test_zero_events():
    assert [zero_need(rate, "tokens").units for rate in (0.01, 0.001, 0.0001)] == [459, 4603, 46050]


def test_bound_need_is_the_smallest_that_suffices():
    need = bound_need(0.002, 1e-4)
    assert bound_width(need.units, 1e-4) <= 0.002 < bound_width(need.units - 1, 1e-4)
    assert bound_width(1, 0.1) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: replay_need(0.0),
        lambda: score_need(0.0, 1.0, 1.0),
        lambda: bernoulli_need(0.9, 0.2),
        lambda: non_inferiority_need(0.1, 0.01, 0.02),
        lambda: zero_need(1.0, "tokens"),
        lambda: bound_need(0.0, 0.1),
    ],
)
def test_effects_that_cannot_be_are_refused(call):
    with pytest.raises(ValueError, match=r"\w"):
        call()
