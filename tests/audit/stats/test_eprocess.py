import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.eprocess import log_ratios, mixture


def laws(seed, n, vocabulary=8):
    rng = np.random.default_rng(seed)
    return rng, *(rng.dirichlet(np.full(vocabulary, 0.5), size=n) for _ in range(2))


def sample(rng, p):
    return (np.cumsum(p, axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(0, p.shape[1] - 1)


def test_every_alternative_is_a_law():
    _, p, q = laws(1, 5)
    for k in range(5):
        rows = np.repeat(p[k : k + 1], 8, axis=0), np.repeat(q[k : k + 1], 8, axis=0)
        for ratio in log_ratios(*rows, np.arange(8)).values():
            assert np.sum(p[k] * np.exp(ratio)) == pytest.approx(1.0)


def test_unknown_q_leaves_its_alternatives_at_one():
    _, p, _ = laws(2, 4)
    ratios = log_ratios(p, np.full_like(p, np.nan), np.zeros(4, dtype=int))
    assert all(not values.any() for name, values in ratios.items() if name.startswith("draft"))


def test_ever_crossing_is_rarer_than_its_level():
    runs, crossed = 600, 0
    for seed in range(runs):
        rng, p, q = laws(seed, 200)
        crossed += mixture(log_ratios(p, q, sample(rng, p))).p < 0.05
    assert crossed <= binom.ppf(0.9995, runs, 0.05)


@pytest.mark.parametrize(("fault", "leader"), [("leak", "draft leak"), ("cold", "p to the power 1.4")])
def test_the_leading_alternative_names_the_fault(fault, leader):
    rng, p, q = laws(11, 1500)
    if fault == "leak":
        token = np.where(rng.random(1500) < 0.5, sample(rng, q), sample(rng, p))
    else:
        cold = p**1.5
        token = sample(rng, cold / cold.sum(axis=1, keepdims=True))
    found = mixture(log_ratios(p, q, token))
    assert found.p < 1e-6
    assert found.leader.startswith(leader)


def test_nothing_observed_is_no_evidence():
    assert mixture({}).p == 1.0
