import numpy as np
import pytest
from scipy.stats import binom, gamma, norm

from audit.stats.tails import freedman, two_sided


@pytest.mark.parametrize("z", [0.0, 1.0, -2.5, 6.0])
def test_without_skewness_the_tail_is_normal(z):
    assert two_sided(z, 0.0) == pytest.approx(min(1.0, 2 * norm.sf(abs(z))))


@pytest.mark.parametrize("shape", [16.0, 100.0])
def test_the_heavy_side_of_a_gamma_sum_is_exact(shape):
    z = 3.5
    expected = 2 * gamma.sf(shape + z * np.sqrt(shape), shape)
    assert two_sided(z, 2 / np.sqrt(shape)) == pytest.approx(expected)
    assert two_sided(-z, -2 / np.sqrt(shape)) == pytest.approx(expected)


def test_the_light_side_never_goes_below_the_normal_tail():
    assert two_sided(-3.5, 0.5) == pytest.approx(2 * norm.sf(3.5))


def test_freedman_bounds_the_binomial_tail():
    n, chance = 200, 0.1
    for k in range(25, 60):
        exact = binom.sf(k - 1, n, chance) + binom.cdf(2 * n * chance - k, n, chance)
        assert freedman(k - n * chance, n * chance * (1 - chance), 1.0) >= exact


def test_no_deviation_is_no_evidence():
    assert freedman(0.0, 1.0, 1.0) == 1.0
