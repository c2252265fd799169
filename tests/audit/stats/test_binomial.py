import pytest
from scipy.stats import binom

from audit.stats.binomial import clopper_pearson, lower_bound, upper_bound


def test_zero_violations_give_the_rule_of_three_like_bound():
    assert upper_bound(0, 1000, 0.99) == pytest.approx(1 - 0.01 ** (1 / 1000))


@pytest.mark.parametrize(("successes", "trials"), [(1, 20), (7, 50), (19, 20)])
def test_bounds_leave_exactly_the_error_probability_in_the_tail(successes, trials):
    assert binom.cdf(successes, trials, upper_bound(successes, trials, 0.99)) == pytest.approx(0.01)
    assert binom.sf(successes - 1, trials, lower_bound(successes, trials, 0.99)) == pytest.approx(0.01)


def test_interval_covers_at_least_its_confidence():
    chance, trials = 0.03, 80
    covered = sum(
        binom.pmf(k, trials, chance)
        for k in range(trials + 1)
        if clopper_pearson(k, trials, 0.95).low <= chance <= clopper_pearson(k, trials, 0.95).high
    )
    assert covered >= 0.95


def test_ends_of_the_range():
    assert upper_bound(5, 5) == 1.0
    assert upper_bound(0, 0) == 1.0
    assert lower_bound(0, 5) == 0.0


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="6 successes in 5 trials"):
        upper_bound(6, 5)
