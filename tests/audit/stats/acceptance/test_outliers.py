"""The law of accepted tokens by enumeration, and how often ordinary and odd requests are named."""

import itertools

import numpy as np
import pytest
import scipy

from audit.stats.acceptance.outliers import EXPONENTIAL, NORMAL, AcceptanceLaw, conditional_rates, fit, judged

RATES = np.array([0.7, 0.5])
EFFECTS = {
    "none": lambda generator, n: np.zeros(n),
    "normal": lambda generator, n: generator.normal(0.0, 0.6, n),
    "two kinds": lambda generator, n: generator.choice([-0.8, 0.8], n),
    "exponential": lambda generator, n: -0.6 * generator.exponential(1.0, n),
    "gamma": lambda generator, n: 0.5 * (generator.gamma(2.0, 1.0, n) - 2.0),
}
"""Differences between requests, on the log odds."""


def arm(generator, effects, steps=40, gamma=4, rate=0.7):
    """Steps of one arm, whose requests keep each drafted token with the rate at their effect."""
    plans = []
    for effect in effects:
        chance = scipy.special.expit(scipy.special.logit(rate) + effect)
        kept = generator.random((steps, gamma)) < chance
        plans.append([(gamma, int(np.argmin([*row, False]))) for row in kept])
    return plans


def smallest(plans):
    return min(each.adjusted for each in judged([fit(plans)]))


def alarms(kind, arms, level, requests=30):
    """Arms of ordinary requests of which one is named."""
    seeds = (np.random.default_rng([seed, *kind.encode()]) for seed in range(arms))
    return sum(smallest(arm(each, EFFECTS[kind](each, requests))) <= level for each in seeds)


def test_the_law_of_accepted_tokens_is_that_of_all_outcomes():
    law = AcceptanceLaw({2: 2, 1: 1}, RATES)
    chance = np.array([[0.3, 0.35, 0.35], [0.3, 0.7, 0.0]])
    expected = np.zeros(6)
    for first, second, third in itertools.product(range(3), range(3), range(2)):
        expected[first + second + third] += chance[0, first] * chance[0, second] * chance[1, third]
    np.testing.assert_allclose(law.given(np.zeros(1))[0], expected, atol=1e-12)
    assert law.drafted == 5
    assert law.mean(0.0) == pytest.approx(expected @ np.arange(6))
    assert law.mean(0.5) > law.mean(0.0) > law.mean(-0.5)


def test_rates_are_conditional_on_reaching_a_position():
    np.testing.assert_allclose(conditional_rates([[(2, 2), (2, 1)], [(2, 0), (1, 1)]]), [3.5 / 5, 1.5 / 3])


def test_exponential_tails_are_longer_than_normal_ones():
    law = AcceptanceLaw({4: 30}, np.full(4, 0.7))
    few = [float(law.mixed(0.4, weights)[:10].sum()) for weights in (NORMAL, EXPONENTIAL)]
    assert 0 < 10 * few[0] < few[1]


@pytest.mark.medium
def test_the_spread_between_requests_is_found_and_one_odd_request_does_not_move_it():
    generator = np.random.default_rng(5)
    effects = generator.normal(0.0, 0.6, 200)
    plans = arm(generator, effects)
    spread = fit(plans).spread
    assert spread == pytest.approx(0.6, abs=0.15)
    assert fit([*plans[1:], [(4, 0)] * 40]).spread == pytest.approx(spread, abs=0.05)
    assert fit(arm(generator, np.zeros(200))).spread < 0.2


@pytest.mark.medium
@pytest.mark.parametrize("effect", [-3.0, 5.0])
def test_an_odd_request_is_named_and_its_fellows_are_not(effect):
    for seed in range(5):
        generator = np.random.default_rng(seed)
        found = judged([fit(arm(generator, np.where(np.arange(50) == 17, effect, 0.0), steps=60))])
        assert [i for i, each in enumerate(found) if each.adjusted <= 0.005] == [17]


def shift_of(loss):
    """The effect at which a request of 60 steps loses this share of its accepted tokens."""
    law = AcceptanceLaw({4: 60}, np.full(4, 0.7))
    return scipy.optimize.brentq(lambda shift: 1 - law.mean(shift) / law.mean(0.0) - loss, -9.0, 0.0)


@pytest.mark.slow
def test_the_loss_that_is_detectable_is_found_nine_times_of_ten():
    """40 arms: 0.9 of them is 36, and 30 has a chance below 0.005 if the power is 0.9."""
    hits = 0
    for seed in range(40):
        generator = np.random.default_rng([seed, 3])
        plans = arm(generator, np.zeros(50), steps=60)
        plans[8] = arm(generator, [shift_of(fit(plans).detectable(0.005 / 50))], steps=60)[0]
        hits += judged([fit(plans)])[8].adjusted <= 0.005
    assert hits >= 31


def test_requests_without_a_draft_are_refused():
    with pytest.raises(ValueError, match="needs a drafted token"):
        fit([[(4, 2)], []])
    with pytest.raises(ValueError, match="needs a drafted token"):
        fit([])


def test_a_length_that_shows_nothing_has_no_detectable_loss():
    assert fit([[(1, 1)], [(1, 0)]] * 10).detectable(1e-4) is None


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["none", "exponential"])
def test_ordinary_requests_raise_few_alarms(kind):
    """Nominal 0.05 of 20 arms: more than 5 have a chance below 0.001."""
    assert alarms(kind, 20, 0.05) <= 5


@pytest.mark.slow
def test_of_1000_clean_arms_few_are_named():
    """200 arms of each kind. Nominal: 5 of 1000 at the default level; more than 12 have a chance below 0.002."""
    found = {kind: alarms(kind, 200, 0.005) for kind in EFFECTS}
    assert sum(found.values()) <= 12, found
