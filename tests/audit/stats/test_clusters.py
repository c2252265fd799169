import numpy as np
import pytest
from scipy.stats import binom, t, ttest_1samp

from audit.stats.clusters import Timings, mean_interval, mean_of_strata, quantile_interval, ratio_interval, speed_up
from audit.sweep.choice import median_interval
from tests.support.tiers import fast_first

PROMPTS, PER_PROMPT = 40, 25


def clustered(rng, prompts=PROMPTS, skewed=False):
    """Items with a common part per prompt: true mean 1, intraclass correlation one half."""
    common = rng.exponential(size=prompts) - 1.0 if skewed else rng.normal(size=prompts)
    cluster = np.repeat(np.arange(prompts), PER_PROMPT)
    return 1.0 + common[cluster] + rng.normal(size=len(cluster)), cluster


def missed(runs, interval, truth):
    found = [interval(np.random.default_rng(seed)) for seed in range(runs)]
    return sum(not each.low <= truth <= each.high for each in found)


def test_one_item_per_cluster_is_the_t_test():
    values = np.random.default_rng(1).normal(size=30)
    found, plain = mean_interval(values, np.arange(30), 0.95), ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))
    assert found.design_effect == pytest.approx(1.0)


def test_equal_clusters_are_the_t_test_of_their_means():
    values, cluster = clustered(np.random.default_rng(2))
    means = values.reshape(PROMPTS, PER_PROMPT).mean(axis=1)
    found = mean_interval(values, cluster, 0.99)
    half = t.ppf(0.995, PROMPTS - 1) * means.std(ddof=1) / np.sqrt(PROMPTS)
    assert found.high - found.estimate == pytest.approx(half)


@pytest.mark.medium
def test_coverage_holds_for_prompts_and_fails_for_tokens():
    # 95 % intervals of 400 runs: the true rate of misses is .05 for prompts; bounds at 1e-3
    runs = 400
    by_prompt = missed(runs, lambda rng: mean_interval(*clustered(rng), 0.95), 1.0)
    by_token = missed(runs, lambda rng: mean_interval(clustered(rng)[0], np.arange(PROMPTS * PER_PROMPT), 0.95), 1.0)
    assert binom.ppf(0.001, runs, 0.04) <= by_prompt <= binom.ppf(0.999, runs, 0.05)
    assert by_token > 0.4 * runs


def test_design_effect_of_equal_clusters():
    effects = [mean_interval(*clustered(np.random.default_rng(seed), 400)).design_effect for seed in range(20)]
    assert np.mean(effects) == pytest.approx(1 + (PER_PROMPT - 1) * 0.5, rel=0.05)


def test_ratio_of_unequal_clusters_covers():
    def interval(rng):
        drafted = rng.integers(1, 40, size=60)
        rate = rng.beta(6, 2, size=60)
        return ratio_interval(rng.binomial(drafted, rate).astype(float), drafted.astype(float), np.arange(60), 0.95)

    assert missed(400, interval, 0.75) <= binom.ppf(0.999, 400, 0.06)


def latencies(rng, prompts, each=5):
    """Exponential, with a part common to the prompt: the sum of squares of two normals is exponential."""
    common, own = rng.normal(size=(prompts, 1, 2)), rng.normal(size=(prompts, each, 2))
    return ((common + own) ** 2).sum(axis=2).ravel() / 4, np.repeat(np.arange(prompts), each)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("level", "prompts"), fast_first([(0.5, 30), (0.5, 300), (0.9, 100), (0.99, 100), (0.99, 500)], 2)
)
def test_quantile_coverage(level, prompts):
    truth = -np.log(1 - level)
    runs = 400
    found = missed(runs, lambda rng: quantile_interval(*latencies(rng, prompts), level, 0.95), truth)
    assert found <= binom.ppf(0.999, runs, 0.06)


def test_a_tail_beyond_the_data_has_no_upper_bound():
    found = quantile_interval(*latencies(np.random.default_rng(1), 50), 0.99)
    assert found.high == np.inf
    assert np.isfinite(found.low)


def test_one_item_per_prompt_is_the_interval_of_order_statistics():
    values = np.random.default_rng(2).normal(size=41)
    ours, plain = quantile_interval(values, np.arange(41), 0.5, 0.95), median_interval(values.tolist(), 0.95)
    assert (ours.estimate, ours.low, ours.high) == (plain.median, plain.low, plain.high)


def test_quantile_is_the_inverse_of_the_distribution_function():
    values = np.array([3.0, 1.0, 2.0, 4.0])
    for level, expected in ((0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0)):
        assert quantile_interval(values, np.arange(4), level).estimate == expected


def arms(rng, factor):
    prompt = np.arange(50)
    tokens, weight = rng.integers(20, 200, size=50).astype(float), rng.lognormal(sigma=0.5, size=50)
    baseline = Timings(tokens, tokens * weight * rng.lognormal(sigma=0.1, size=50), prompt)
    return Timings(tokens, tokens * weight / factor * rng.lognormal(sigma=0.1, size=50), prompt), baseline


def test_speed_up_covers_and_pairing_narrows_it():
    runs = 300
    assert missed(runs, lambda rng: speed_up(*arms(rng, 1.5), 0.95), 1.5) <= binom.ppf(0.999, runs, 0.06)
    own, baseline = arms(np.random.default_rng(1), 1.5)
    paired = speed_up(own, baseline)
    rates = [ratio_interval(each.tokens, each.seconds, each.prompt) for each in (own, baseline)]
    unpaired = np.hypot(*(each.se / each.estimate for each in rates))
    assert paired.se < 0.5 * unpaired


def test_speed_up_needs_the_same_prompts():
    own, baseline = arms(np.random.default_rng(1), 1.5)
    with pytest.raises(ValueError, match="same prompts"):
        speed_up(own, Timings(baseline.tokens, baseline.seconds, baseline.prompt + 1))


def test_one_cluster_says_nothing():
    found = mean_interval(np.arange(9.0), np.zeros(9, dtype=int))
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert quantile_interval(np.arange(9.0), np.zeros(9, dtype=int), 0.5).high == np.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval(np.ones(3), np.zeros(2, dtype=int)), "3 values"),
        (lambda: ratio_interval(np.ones(2), np.array([1.0, -1.0]), np.arange(2)), "0 or more"),
        (lambda: ratio_interval(np.ones(2), np.zeros(2), np.arange(2)), "above 0"),
        (lambda: quantile_interval(np.ones(2), np.arange(2), 1.0), "level"),
    ],
)
def test_impossible_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_clusters_that_hold_nothing_do_not_count():
    top, below = np.array([3.0, 1.0, 4.0, 2.0]), np.array([4.0, 3.0, 5.0, 6.0])
    found = ratio_interval(np.append(top, [0.0, 0.0]), np.append(below, [0.0, 0.0]), np.arange(6))
    plain = ratio_interval(top, below, np.arange(4))
    assert found.clusters == 4
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))


def strata(generator, sizes=(8, 9, 10)):
    """Ratios about 0.1, 0.5 and 0.9 of clusters that differ a little."""
    found = []
    for centre, size in zip((0.1, 0.5, 0.9), sizes, strict=True):
        below = generator.integers(40, 60, size).astype(float)
        top = below * (centre + 0.05 * generator.standard_normal(size))
        found.append(ratio_interval(top, below, np.arange(size), 0.99))
    return found


@pytest.mark.medium
def test_a_mean_of_strata_covers_the_mean_and_is_far_narrower_than_the_mixture():
    generator = np.random.default_rng(5)
    runs = [mean_of_strata(strata(generator), 0.95) for _ in range(600)]
    covered = sum(each.low <= 0.5 <= each.high for each in runs)
    # 0.95 of 600, five standard deviations of a binomial either way
    assert 543 <= covered <= 597
    assert np.mean([each.se for each in runs]) < 0.02
    assert (runs[0].clusters, runs[0].n) == (27, 27)


def test_a_stratum_of_one_cluster_gives_no_mean_and_equal_ones_leave_no_doubt():
    generator = np.random.default_rng(6)
    assert mean_of_strata(strata(generator, (8, 1, 8))).high == np.inf
    certain = ratio_interval(np.ones(4), 2 * np.ones(4), np.arange(4))
    assert mean_of_strata([certain, certain]).high == 0.5
    with pytest.raises(ValueError, match="needs one"):
        mean_of_strata([])


def test_one_stratum_is_its_own_mean():
    (found,) = strata(np.random.default_rng(7))[:1]
    mean = mean_of_strata([found], 0.99)
    assert (mean.estimate, mean.low, mean.high) == pytest.approx((found.estimate, found.low, found.high))
