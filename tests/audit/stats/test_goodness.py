from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chisquare, gamma, multinomial, power_divergence

from audit.stats.goodness import Method, combined_fit, goodness_of_fit
from tests.support.tiers import fast_first, slow_unless

LAW = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("kind", "power"), [("pearson", 1), ("g", 0)])
def test_large_tables_are_scipys(kind, power):
    counts = generator(1).multinomial(400, LAW)
    found = goodness_of_fit(counts, LAW, generator(), kind)
    theirs = power_divergence(counts, 400 * LAW, lambda_=power)
    assert found.method is Method.LIMIT
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.degrees == 4


def test_small_tables_are_enumerated():
    counts, law = np.array([1, 4, 2]), np.array([0.5, 0.3, 0.2])
    observed = np.sum((counts - 7 * law) ** 2 / (7 * law))
    expected = 0.0
    for table in product(range(8), repeat=3):
        if sum(table) == 7 and np.sum((np.array(table) - 7 * law) ** 2 / (7 * law)) >= observed - 1e-9:
            expected += multinomial.pmf(table, 7, law)
    found = goodness_of_fit(counts, law, generator())
    assert (found.method, found.p) == (Method.EXACT, pytest.approx(expected))


def test_two_equal_cells_are_the_binomial_test():
    found = goodness_of_fit(np.array([11, 4]), np.array([0.5, 0.5]), generator())
    assert found.p == pytest.approx(binomtest(4, 15).pvalue)


def test_few_draws_in_many_cells_are_simulated_and_never_zero():
    law = np.full(40, 1 / 40)
    counts = np.zeros(40, dtype=int)
    counts[0] = 30
    found = goodness_of_fit(counts, law, generator(), replicates=999)
    assert (found.method, found.p) == (Method.SIMULATED, 0.001)


def test_simulation_approaches_scipys():
    law, rng = np.full(20, 1 / 20), generator(3)
    counts = rng.multinomial(45, law)
    ours = goodness_of_fit(counts, law, rng, replicates=20_000).p
    tables = rng.multinomial(45, law, size=20_000)
    bar = chisquare(counts).statistic - 1e-9
    assert ours == pytest.approx(np.mean(((tables - 2.25) ** 2 / 2.25).sum(axis=1) >= bar), abs=0.015)


def test_small_cells_are_pooled():
    law = np.array([0.5, 0.46, 0.02, 0.01, 0.01])
    found = goodness_of_fit(np.array([60, 50, 6, 3, 1]), law, generator())
    # 120 draws: expectations 2.4, 1.2 and 1.2 are pooled to 4.8, which joins the smaller large cell
    assert found.degrees == 1
    assert found.statistic == pytest.approx(chisquare([60, 60], [60, 60]).statistic)
    wide = goodness_of_fit(np.array([110, 100, 6, 3, 1]), law, generator())
    assert wide.degrees == 2


def test_tiny_law_tails_do_not_leave_one_cell_to_the_limit():
    law = np.array([0.999, 0.0005, 0.0005])
    rare = goodness_of_fit(np.array([394, 3, 3]), law, generator())
    assert rare.method is not Method.LIMIT
    assert rare.p < 0.001


@pytest.mark.medium
@pytest.mark.parametrize("n", fast_first([12, 45, 300]))
def test_false_alarms_are_nominal_and_a_change_is_found(n):
    law, runs = np.tile(LAW / 2, 2), 400
    other = np.concatenate([LAW, LAW[::-1]]) / 2
    null = sum(
        goodness_of_fit(generator(seed).multinomial(n, law), law, generator(), replicates=399).p <= 0.05
        for seed in range(runs)
    )
    found = sum(
        goodness_of_fit(generator(seed).multinomial(n, other), law, generator(), replicates=399).p <= 0.05
        for seed in range(runs)
    )
    assert binom.ppf(0.001, runs, 0.03) <= null <= binom.ppf(0.999, runs, 0.055)
    assert found > 1.5 * null + 10


def test_impossible_counts_have_no_chance():
    law = np.array([0.5, 0.5, 0.0])
    assert goodness_of_fit(np.array([5, 5, 1]), law, generator()).p == 0.0
    assert goodness_of_fit(np.array([5, 5, 0]), law, generator()).p == 1.0
    assert combined_fit(np.array([[5, 5, 1]]), law[None]).p == 0.0


def test_nothing_drawn_is_no_evidence():
    assert goodness_of_fit(np.zeros(5, dtype=int), LAW, generator()).p == 1.0
    assert goodness_of_fit(np.array([7]), np.array([1.0]), generator()).p == 1.0
    assert combined_fit(np.zeros((3, 5), dtype=int), np.tile(LAW, (3, 1))).p == 1.0


def many_tables(rng, tables=300, power=1.0):
    laws = rng.dirichlet(np.full(12, 0.3), size=tables)
    actual = laws**power
    counts = np.stack([rng.multinomial(rng.integers(15, 60), row / row.sum()) for row in actual])
    return counts, laws


@pytest.mark.slow
def test_combined_statistic_has_the_stated_mean_and_variance():
    tests = [combined_fit(*many_tables(generator(seed))) for seed in range(400)]
    standard = np.array([(each.statistic - each.degrees) / np.sqrt(2 * each.degrees) for each in tests])
    assert np.mean(standard) == pytest.approx(0.0, abs=4 / np.sqrt(400))


@pytest.mark.medium
@pytest.mark.parametrize("level", slow_unless([0.05, 0.01], [0.01]))
def test_combined_false_alarms_are_nominal(level):
    runs = 600
    false = sum(combined_fit(*many_tables(generator(seed), 100)).p <= level for seed in range(runs))
    assert binom.ppf(0.001, runs, 0.8 * level) <= false <= binom.ppf(0.999, runs, 1.2 * level)


def test_many_small_tables_show_what_no_single_one_does():
    counts, laws = many_tables(generator(5), 300, power=0.8)
    single = [
        goodness_of_fit(row, law, generator(), replicates=199).p
        for row, law in zip(counts[:40], laws[:40], strict=True)
    ]
    assert combined_fit(counts, laws).p < 1e-4
    assert np.median(single) > 0.05


@pytest.mark.parametrize(
    ("counts", "law", "message"),
    [(np.ones(2, dtype=int), LAW, "shape"), (np.ones(5, dtype=int), 2 * LAW, "add up to 1")],
)
def test_impossible_laws_are_refused(counts, law, message):
    with pytest.raises(ValueError, match=message):
        goodness_of_fit(counts, law, generator())
    with pytest.raises(ValueError, match="shape"):
        combined_fit(np.ones((2, 3), dtype=int), np.ones((2, 2)))


def test_combined_p_uses_the_variance_of_the_finite_table():
    law, n = np.array([0.3, 0.7]), 20
    counts = np.arange(n + 1)
    statistics = (counts - n * law[0]) ** 2 / (n * law[0]) + (counts - n * law[0]) ** 2 / (n * law[1])
    chances = binom.pmf(counts, n, law[0])
    variance = chances @ (statistics - chances @ statistics) ** 2
    found = combined_fit(np.array([[10, 10]]), law[None])
    assert chances @ statistics == pytest.approx(found.degrees)
    assert found.p == pytest.approx(gamma.sf(statistics[10], 1 / variance, scale=variance))
