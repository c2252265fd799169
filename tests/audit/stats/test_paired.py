import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, binomtest, norm, permutation_test

from audit.stats.paired import PairCounts, mcnemar, sign_flip, tango_lower, tango_score, tango_upper
from tests.support.tiers import fast_first


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (5, 0), (3, 8), (20, 11), (6, 6)])
def test_mcnemar_is_the_binomial_test(worse, better):
    found = mcnemar(PairCounts(100, worse, better))
    if worse + better == 0:
        assert found.p == 1.0
        return
    assert found.p == pytest.approx(binomtest(worse, worse + better).pvalue)
    theirs = binomtest(worse, worse + better).proportion_ci(0.99)
    assert (found.direction.low, found.direction.high) == pytest.approx((theirs.low, theirs.high))


def likelihood_score(pairs, loss):
    """The same score with the nuisance found by a search."""

    def negative(better):
        cells = np.array([better + loss, better, 1 - 2 * better - loss])
        counts = np.array([pairs.worse, pairs.better, pairs.n - pairs.worse - pairs.better])
        return -float(np.sum(counts * np.log(np.maximum(cells, 1e-300))))

    low, high = max(0.0, -loss), (1 - loss) / 2
    own = minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    deviation = (pairs.worse - pairs.better) / pairs.n - loss
    return deviation / np.sqrt((2 * own + loss - loss**2) / pairs.n)


@pytest.mark.parametrize("loss", [-0.3, -0.05, 0.02, 0.1, 0.6])
@pytest.mark.parametrize("pairs", [PairCounts(50, 4, 9), PairCounts(200, 1, 2), PairCounts(30, 12, 3)])
def test_score_is_at_the_maximum_of_the_likelihood(pairs, loss):
    assert tango_score(pairs, loss) == pytest.approx(likelihood_score(pairs, loss), rel=1e-4)


def test_score_at_no_difference_is_mcnemars():
    assert tango_score(PairCounts(80, 12, 5), 0.0) == pytest.approx((12 - 5) / np.sqrt(17))


@pytest.mark.parametrize(
    "pairs", [PairCounts(50, 4, 9), PairCounts(200, 0, 0), PairCounts(30, 30, 0), PairCounts(30, 0, 30)]
)
def test_bounds_and_score_agree(pairs):
    for margin in (0.01, 0.05, 0.2, 0.5):
        rejected = tango_score(pairs, margin) <= norm.ppf(0.05)
        assert rejected == (tango_upper(pairs, 0.95) <= margin + 1e-9)
    assert tango_lower(pairs) <= (pairs.worse - pairs.better) / pairs.n <= tango_upper(pairs)


def table_law(n, worse, better):
    """All (worse, better) of n with their probabilities."""
    for lost in range(n + 1):
        head = binom.pmf(lost, n, worse)
        if head > 1e-12:
            for won in range(n - lost + 1):
                yield PairCounts(n, lost, won), head * binom.pmf(won, n - lost, better / (1 - worse))


@pytest.mark.medium
@pytest.mark.parametrize("better", fast_first([0.02, 0.1]))
def test_size_at_the_margin_by_enumeration(better):
    n, margin = 100, 0.1
    size = sum(
        chance
        for pairs, chance in table_law(n, better + margin, better)
        if tango_score(pairs, margin) <= norm.ppf(0.05)
    )
    # the score test is asymptotic: it may pass .05 a little
    assert size <= 0.06


@pytest.mark.slow
def test_non_inferiority_is_shown_when_true_and_not_when_false():
    n, margin = 400, 0.05
    clean = sum(chance for pairs, chance in table_law(n, 0.01, 0.01) if tango_score(pairs, margin) <= norm.ppf(0.01))
    broken = sum(chance for pairs, chance in table_law(n, 0.09, 0.01) if tango_score(pairs, margin) <= norm.ppf(0.01))
    assert clean > 0.95
    assert broken < 0.01


def test_few_prompts_are_enumerated_as_scipy_does():
    values = np.random.default_rng(1).normal(loc=0.5, size=10)
    found = sign_flip(values, np.arange(10), np.random.default_rng(0))
    theirs = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.exact
    assert found.p == pytest.approx(theirs.pvalue)


def test_simulated_flips_approach_the_enumeration():
    values = np.random.default_rng(2).normal(loc=0.4, size=15)
    signs = 1 - 2.0 * ((np.arange(2**15)[:, None] >> np.arange(15)) & 1)
    exact = np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-12)
    found = sign_flip(values, np.arange(15), np.random.default_rng(3), flips=50_000)
    assert not found.exact
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact / 50_000))


def prompts_with_common_part(rng, mean, prompts=30, each=20):
    cluster = np.repeat(np.arange(prompts), each)
    return mean + rng.normal(size=prompts)[cluster] + rng.normal(size=len(cluster)), cluster


@pytest.mark.medium
def test_flipping_prompts_holds_its_level_and_flipping_tokens_does_not():
    runs, by_prompt, by_token = 300, 0, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        values, cluster = prompts_with_common_part(rng, 0.0)
        by_prompt += sign_flip(values, cluster, rng, flips=199).p <= 0.05
        by_token += sign_flip(values, np.arange(len(values)), rng, flips=199).p <= 0.05
    assert binom.ppf(0.001, runs, 0.05) <= by_prompt <= binom.ppf(0.999, runs, 0.05)
    assert by_token > 0.4 * runs


def test_a_shift_is_found_and_p_is_never_zero():
    values, cluster = prompts_with_common_part(np.random.default_rng(4), 5.0)
    assert sign_flip(values, cluster, np.random.default_rng(0), flips=999).p == pytest.approx(0.001)
    assert sign_flip(np.ones(4), np.arange(4), np.random.default_rng(0)).p == pytest.approx(2 / 16)


def test_no_differences_are_no_evidence():
    assert sign_flip(np.zeros(5), np.arange(5), np.random.default_rng(0)).p == 1.0
    assert sign_flip(np.empty(0), np.empty(0, dtype=int), np.random.default_rng(0)).p == 1.0


@pytest.mark.parametrize("counts", [(5, 3, 3), (5, -1, 0)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="pairs"):
        PairCounts(*counts)
