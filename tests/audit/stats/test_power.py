import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from audit.stats.paired import mcnemar, pairs_of, tango
from audit.stats.pit import smooth_test
from audit.stats.power import (
    SampleSize,
    bernoulli_need,
    bernoulli_power,
    bound_need,
    bound_width,
    e_process_need,
    mcnemar_need,
    non_inferiority_need,
    replay_effect,
    replay_need,
    score_effect,
    score_need,
    simulated_need,
    simulated_power,
    smooth_effect,
    smooth_need,
    smooth_power,
    zero_need,
)
from audit.stats.two_sample import first_token_test, pooled


def share(rejects, runs):
    return sum(rejects(np.random.default_rng(seed)) for seed in range(runs)) / runs


def near(found, power, runs):
    """Within three standard errors of a simulated share."""
    return abs(found - power) <= 3 * np.sqrt(power * (1 - power) / runs)


def test_replay_meets_the_first_violation():
    need = replay_need(0.01)
    assert need == SampleSize(230, "decisions", 0.01, 0.0, 0.9)
    assert 1 - 0.99**230 >= 0.9 > 1 - 0.99**229
    assert replay_effect(230) == pytest.approx(0.01, rel=0.01)
    assert replay_need(1.0).units == 1
    assert replay_effect(0) == 1.0


def test_score_need_and_effect_are_inverse_and_scale_as_the_square():
    need = score_need(0.01, 0.05, 0.2)
    assert score_effect(need.units * 0.05, need.units * 0.2) == pytest.approx(0.01, rel=1e-4)
    assert score_need(0.001, 0.05, 0.2).units == pytest.approx(100 * need.units, rel=1e-3)
    assert score_effect(1.0, 0.0) == np.inf


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


@pytest.mark.parametrize(("expected", "effect"), [(0.7, 0.03), (0.5, -0.05), (0.1, 0.02)])
def test_bernoulli_need_against_the_exact_power(expected, effect):
    need = bernoulli_need(expected, effect)
    assert bernoulli_power(need.units, expected, expected + effect) == pytest.approx(0.9, abs=0.02)
    assert bernoulli_power(need.units, expected, expected) <= 0.01


def test_exact_power_is_that_of_the_doubled_binomial_test():
    rejected = [k for k in range(31) if binomtest(k, 30, 0.5).pvalue <= 0.01]
    assert bernoulli_power(30, 0.5, 0.8) == pytest.approx(sum(binom.pmf(k, 30, 0.8) for k in rejected))


def test_smooth_power_by_simulation():
    # density 1 + c phi_1 on [0, 1]: the first component has mean c
    c = 0.1
    need = smooth_need(c**2)
    assert smooth_power(need.units, c**2) == pytest.approx(0.9, abs=0.001)
    assert smooth_effect(need.units) == pytest.approx(c**2, rel=1e-2)
    assert smooth_power(1000, 0.0) == 0.01

    def rejects(rng):
        slope = c * np.sqrt(3)
        u = rng.random(need.units)
        # inverse of F(x) = x + slope (x^2 - x)
        x = (slope - 1 + np.sqrt((1 - slope) ** 2 + 4 * slope * u)) / (2 * slope)
        return smooth_test(x, rng).p <= 0.01

    assert near(share(rejects, 400), 0.9, 400)


@pytest.mark.medium
def test_mcnemar_need_by_simulation():
    worse, better = 0.08, 0.03
    need = mcnemar_need(worse + better, worse - better, alpha=0.05)

    def rejects(rng):
        return mcnemar(_pairs(rng.random(need.units), worse, better)).p <= 0.05

    # the exact test is a little conservative
    assert 0.86 <= share(rejects, 1000) <= 0.93


def _pairs(draw, worse, better):
    lost, won = draw < worse, (draw >= worse) & (draw < worse + better)
    return pairs_of(~won, ~lost)


@pytest.mark.medium
def test_non_inferiority_need_is_the_published_size_and_holds():
    assert non_inferiority_need(0.005, 0.01).units == 651
    assert non_inferiority_need(0.05, 0.01).units in (6508, 6509)
    need = non_inferiority_need(0.1, 0.05)

    def rejects(rng):
        return tango(_pairs(rng.random(need.units), 0.05, 0.05), 0.05).p <= 0.01

    # Tango's variance is that at the margin: it asks for a little more
    assert 0.82 <= share(rejects, 1000) <= 0.93


def test_zero_events():
    assert [zero_need(rate).units for rate in (0.01, 0.001, 0.0001)] == [459, 4603, 46050]


def test_bound_need_is_the_smallest_that_suffices():
    need = bound_need(0.002, 1e-4)
    assert bound_width(need.units, 1e-4) <= 0.002 < bound_width(need.units - 1, 1e-4)
    assert bound_width(1, 0.1) == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("power", [0.5, 0.9])
def test_e_process_need_by_simulation(power):
    p, q, leak = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4]), 0.3
    r = (1 - leak) * p + leak * q
    steps = np.log(r / p)
    growth = r @ steps
    need = e_process_need(growth, components=8, power=power, variance=r @ steps**2 - growth**2)

    def crosses(rng):
        path = np.cumsum(steps[rng.choice(3, size=need.units, p=r)])
        return path.max() >= np.log(100 * 8)

    # the end reaches the goal with the asked power, the maximum before it: the first passage
    # of a Brownian motion with drift, here crossed in steps
    goal, spread = np.log(800), np.sqrt((r @ steps**2 - growth**2) * need.units)
    late = norm.cdf(-(growth * need.units + goal) / spread) * np.exp(2 * growth * goal * need.units / spread**2)
    assert power + late == pytest.approx(share(crosses, 1000), abs=0.05)
    assert share(crosses, 1000) >= power - 0.03


def test_e_process_need_at_even_odds_is_the_growth_rate():
    assert e_process_need(0.01, 10, power=0.5).units == pytest.approx((np.log(100) + np.log(10)) / 0.01, abs=1)


def first_tokens(size, rng, shift=0.4):
    first = rng.choice(3, size=size, p=[0.6, 0.3, 0.1])
    second = rng.choice(3, size=size, p=[0.6 - shift, 0.3, 0.1 + shift])
    drawn = pooled(first[:, None].tolist(), [0] * size, second[:, None].tolist(), [0] * size)
    return first_token_test(drawn, rng, 199).p


@pytest.mark.medium
def test_power_of_a_permutation_test_is_simulated():
    rng = np.random.default_rng(1)
    weak = simulated_power(lambda numbers: first_tokens(10, numbers), 100, rng)
    strong = simulated_power(lambda numbers: first_tokens(60, numbers), 100, rng)
    null = simulated_power(lambda numbers: first_tokens(60, numbers, 0.0), 100, rng)
    assert null.high < 0.1
    assert weak.high < strong.low <= strong.power <= strong.high


def test_the_smallest_size_that_suffices_is_found():
    rng = np.random.default_rng(2)
    need = simulated_need(first_tokens, (10, 40, 80), 60, rng, effect=0.4, unit="responses")
    assert need is not None
    assert (need.units, need.unit, need.effect) == (80, "responses", 0.4) or need.units == 40
    assert simulated_need(first_tokens, (4,), 20, rng, effect=0.4) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: replay_need(0.0),
        lambda: score_need(0.0, 1.0, 1.0),
        lambda: bernoulli_need(0.9, 0.2),
        lambda: smooth_need(0.0),
        lambda: smooth_need(0.1, alpha=0.5, power=0.4),
        lambda: mcnemar_need(0.01, 0.02),
        lambda: non_inferiority_need(0.1, 0.01, 0.02),
        lambda: zero_need(1.0),
        lambda: bound_need(0.0, 0.1),
        lambda: e_process_need(0.0),
    ],
)
def test_effects_that_cannot_be_are_refused(call):
    with pytest.raises(ValueError, match=r"\w"):
        call()
