"""The laws of `audit.stats.laws` are those of scipy.stats, far into the tails and at the edges of their supports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from audit.stats import laws

SHARES = np.array([1e-12, 1e-6, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999])
POINTS = np.array([-3.0, 0.0, 1e-8, 0.4, 1.0, 7.5, 40.0, 300.0])
FREEDOM = np.array([[1.0], [4.0], [37.0], [1000.0]])
CASES = {
    "normal_sf": (stats.norm.sf, (np.linspace(-30, 30, 61),)),
    "normal_ppf": (stats.norm.ppf, (SHARES,)),
    "normal_isf": (stats.norm.isf, (SHARES,)),
    "chi2_sf": (stats.chi2.sf, (POINTS[1:], FREEDOM)),
    "t_sf": (stats.t.sf, (POINTS, FREEDOM)),
    "t_ppf": (stats.t.ppf, (SHARES, FREEDOM)),
    "gamma_cdf": (lambda x, shape, scale: stats.gamma.cdf(x, shape, scale=scale), (POINTS, FREEDOM, 1.7)),
    "gamma_sf": (lambda x, shape, scale: stats.gamma.sf(x, shape, scale=scale), (POINTS, FREEDOM, 1.7)),
    "beta_ppf": (stats.beta.ppf, (SHARES, FREEDOM, 12.0)),
    "binomial_cdf": (stats.binom.cdf, (np.arange(-2, 23), 20, np.array([[0.0], [0.01], [0.5], [1.0]]))),
    "binomial_sf": (stats.binom.sf, (np.arange(-2, 23), 20, np.array([[0.0], [0.01], [0.5], [1.0]]))),
    "poisson_sf": (stats.poisson.sf, (np.arange(0, 60, 7), np.array([[0.02], [3.0], [50.0]]))),
}


def test_every_law_is_compared():
    own = {name for name, each in vars(laws).items() if callable(each) and each.__module__ == laws.__name__}
    assert own == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_law_of_scipy_stats(name):
    theirs, given = CASES[name]
    np.testing.assert_allclose(getattr(laws, name)(*given), theirs(*given), rtol=1e-9, atol=1e-300)


def test_no_trials():
    assert laws.binomial_cdf([-1, 0], 0, 0.3).tolist() == [0.0, 1.0]
    assert laws.binomial_sf([-1, 0], 0, 0.3).tolist() == [1.0, 0.0]


LOADED = """
import sys
from audit import checks
from audit.stats.laws import normal_sf
for name in checks.REGISTRY:
    checks.load(name)
before = set(sys.modules)
normal_sf(1.0)
print("scipy.special" in before, "scipy.special" in sys.modules, "scipy.stats" in sys.modules)
"""


@pytest.mark.medium
def test_checks_load_no_special_functions_and_computing_loads_no_more():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]
