import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, ttest_1samp

from audit.stats.equivalence import (
    EquivalenceDecision,
    SuccessCounts,
    decide,
    decide_distance,
    difference_score,
    tost_means,
    tost_means_bootstrap,
    tost_means_sign_flip,
    tost_paired_proportions,
    tost_proportions,
)
from audit.stats.paired import PairCounts
from tests.support.tiers import fast_first

ALPHA = 0.05


def prompts(rng, mean, count=40, each=10):
    cluster = np.repeat(np.arange(count), each)
    return mean + 0.3 * rng.normal(size=count)[cluster] + 0.3 * rng.normal(size=len(cluster)), cluster


def by_t(rng, mean, margin):
    return tost_means(*prompts(rng, mean), margin, ALPHA)


def by_bootstrap(rng, mean, margin):
    return tost_means_bootstrap(*prompts(rng, mean), margin, rng, ALPHA, 999)


def by_flips(rng, mean, margin):
    return tost_means_sign_flip(*prompts(rng, mean), margin, rng, ALPHA, 199)


FORMS = (by_t, by_bootstrap, by_flips)


def decisions(form, mean, margin, runs):
    found = [form(np.random.default_rng(seed), mean, margin).decision for seed in range(runs)]
    return {kind: found.count(kind) for kind in EquivalenceDecision}


@pytest.mark.parametrize("form", fast_first(FORMS))
@pytest.mark.parametrize("side", fast_first([1, -1]))
def test_a_difference_at_the_margin_is_certified_and_blamed_at_most_alpha_often(form, side):
    runs = 200
    found = decisions(form, side * 0.3, 0.3, runs)
    # the bootstrap is asymptotic: .065 at 40 prompts
    most = binom.ppf(0.999, runs, 0.065 if form is by_bootstrap else ALPHA)
    assert found[EquivalenceDecision.CERTIFIED] <= most
    assert found[EquivalenceDecision.FAULT] <= most


@pytest.mark.medium
@pytest.mark.parametrize("form", FORMS)
def test_equal_arms_are_certified_and_broken_ones_are_not(form):
    assert decisions(form, 0.0, 0.3, 30)[EquivalenceDecision.CERTIFIED] == 30
    assert decisions(form, 0.6, 0.3, 30)[EquivalenceDecision.FAULT] >= 29
    assert decisions(form, 0.0, 0.05, 30)[EquivalenceDecision.CERTIFIED] <= 3


def test_p_and_decision_agree():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        for found in (by_t(rng, 0.15, 0.3), by_flips(rng, 0.15, 0.3)):
            assert (found.p <= ALPHA) == (found.decision is EquivalenceDecision.CERTIFIED)


def test_one_item_per_prompt_is_two_t_tests():
    values = np.random.default_rng(1).normal(loc=0.1, size=50)
    found = tost_means(values, np.arange(50), 0.4, ALPHA)
    sides = ttest_1samp(values, -0.4, alternative="greater"), ttest_1samp(values, 0.4, alternative="less")
    assert found.p == pytest.approx(max(each.pvalue for each in sides))


def test_identical_arms_are_certified_and_one_prompt_is_not():
    assert tost_means(np.zeros(30), np.arange(30), 0.1).decision is EquivalenceDecision.CERTIFIED
    assert tost_means(np.zeros(30), np.arange(30), 0.1).p == 0.0
    lone = tost_means(np.zeros(30), np.zeros(30, dtype=int), 0.1)
    assert (lone.decision, lone.p) == (EquivalenceDecision.INCONCLUSIVE, 1.0)


def restricted(first, second, difference):
    """The score with the common rate found by a search."""

    def negative(rate):
        chances = np.clip([rate, 1 - rate, rate + difference, 1 - rate - difference], 1e-300, 1)
        counts = [
            first.successes,
            first.trials - first.successes,
            second.successes,
            second.trials - second.successes,
        ]
        return -float(np.sum(np.array(counts) * np.log(chances)))

    low, high = max(0.0, -difference), min(1.0, 1 - difference)
    base = minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    moved = base + difference
    spread = np.sqrt(base * (1 - base) / first.trials + moved * (1 - moved) / second.trials)
    return (second.rate - first.rate - difference) / spread


@pytest.mark.parametrize("difference", [-0.2, -0.01, 0.0, 0.05, 0.3])
def test_score_of_proportions_is_at_the_maximum_of_the_likelihood(difference):
    for first, second in (
        (SuccessCounts(40, 60), SuccessCounts(70, 90)),
        (SuccessCounts(3, 50), SuccessCounts(9, 40)),
        (SuccessCounts(0, 30), SuccessCounts(4, 30)),
    ):
        expected = restricted(first, second, difference)
        assert difference_score(first, second, difference) == pytest.approx(expected, rel=1e-3)


@pytest.mark.medium
def test_size_of_proportions_by_enumeration():
    margin, trials, base = 0.15, 60, 0.7
    size = 0.0
    for first in range(trials + 1):
        for second in range(trials + 1):
            chance = binom.pmf(first, trials, base) * binom.pmf(second, trials, base - margin)
            if chance > 1e-9:
                found = tost_proportions(SuccessCounts(first, trials), SuccessCounts(second, trials), margin, ALPHA)
                size += chance * (found.p <= ALPHA)
    # the score test is asymptotic: a little above .05 is its known size
    assert 0.0 < size <= 0.06


def test_proportions_are_certified_when_equal_and_blamed_when_not():
    assert (
        tost_proportions(SuccessCounts(900, 1000), SuccessCounts(902, 1000), 0.05).decision
        is EquivalenceDecision.CERTIFIED
    )
    assert (
        tost_proportions(SuccessCounts(900, 1000), SuccessCounts(700, 1000), 0.05).decision is EquivalenceDecision.FAULT
    )
    assert (
        tost_proportions(SuccessCounts(9, 10), SuccessCounts(9, 10), 0.05).decision is EquivalenceDecision.INCONCLUSIVE
    )
    assert tost_paired_proportions(PairCounts(1000, 4, 5), 0.02).decision is EquivalenceDecision.CERTIFIED
    assert tost_paired_proportions(PairCounts(1000, 90, 5), 0.02).decision is EquivalenceDecision.FAULT
    assert tost_paired_proportions(PairCounts(20, 1, 0), 0.02).decision is EquivalenceDecision.INCONCLUSIVE
    assert tost_paired_proportions(PairCounts(0, 0, 0), 0.02).decision is EquivalenceDecision.INCONCLUSIVE


@pytest.mark.parametrize(
    "shares",
    [
        (SuccessCounts(0, 50), SuccessCounts(0, 50)),
        (SuccessCounts(50, 50), SuccessCounts(0, 50)),
        (SuccessCounts(7, 9), SuccessCounts(1, 80)),
    ],
)
def test_bounds_of_proportions_hold_the_estimate_and_agree_with_p(shares):
    for margin in (0.01, 0.1, 0.3, 0.9):
        found = tost_proportions(*shares, margin, ALPHA)
        assert found.low <= found.estimate <= found.high
        assert (found.p <= ALPHA) == (found.decision is EquivalenceDecision.CERTIFIED)


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (-0.1, 0.1, EquivalenceDecision.CERTIFIED),
        (0.11, 0.2, EquivalenceDecision.FAULT),
        (-0.3, -0.2, EquivalenceDecision.FAULT),
        (0.0, 0.2, EquivalenceDecision.INCONCLUSIVE),
    ],
)
def test_three_decisions(low, high, decision):
    assert decide(low, high, 0.1) is decision


def test_decisions_on_a_distance():
    assert decide_distance(0.0, 0.01, 0.01) is EquivalenceDecision.CERTIFIED
    assert decide_distance(0.02, 0.03, 0.01) is EquivalenceDecision.FAULT
    assert decide_distance(0.0, 0.03, 0.01) is EquivalenceDecision.INCONCLUSIVE
    with pytest.raises(ValueError, match="not in order"):
        decide_distance(0.2, 0.1, 0.01)
    with pytest.raises(ValueError, match="not in order"):
        decide(0.2, 0.1, 0.01)
    with pytest.raises(ValueError, match="not in order"):
        decide(float("nan"), 0.1, 0.01)


def test_shares_need_trials():
    with pytest.raises(ValueError, match="trials"):
        SuccessCounts(0, 0)


def test_flips_say_on_which_side_the_fault_lies():
    rng = np.random.default_rng(3)
    above, below = by_flips(rng, 0.8, 0.3), by_flips(rng, -0.8, 0.3)
    assert (above.low, above.high) == (0.3, np.inf)
    assert (below.low, below.high) == (-np.inf, -0.3)
