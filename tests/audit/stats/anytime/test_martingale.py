import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.anytime.martingale import AnytimeTest, score_process, transform_process
from audit.stats.anytime.scores import LOG_FLOOR, leak_scores, log_p_scores, moments, picked
from audit.stats.pit import pit
from tests.audit.stats.chains import pick
from tests.support.tiers import slow_unless

LOW = float(np.log(LOG_FLOOR))


def laws(rng, n, vocabulary=10):
    p, q = (rng.dirichlet(np.full(vocabulary, 0.4), size=n) for _ in range(2))
    return p, q


def of_leak(p, q, token):
    scores = leak_scores(p, q)
    return score_process(picked(scores, token), moments(scores, p).mean, 0.0, 1.0)


def of_log_p(p, token):
    scores = log_p_scores(p)
    return score_process(picked(scores, token), moments(scores, p).mean, LOW, 0.0)


@pytest.mark.medium
@pytest.mark.parametrize("kind", slow_unless(["leak", "log p", "transform"], ["leak"]))
def test_ever_crossing_is_rarer_than_its_level(kind):
    """500 clean runs of 300 tokens, watched at every token; 0.9995 quantile of the binomial law at 0.05."""
    rng, crossed = np.random.default_rng(len(kind)), 0
    for _ in range(500):
        p, q = laws(rng, 300)
        token = pick(rng, p)
        if kind == "transform":
            found = transform_process(pit(p, p, token, rng.random(300)))
        else:
            found = of_leak(p, q, token) if kind == "leak" else of_log_p(p, token)
        crossed += found.p < 0.05
    assert crossed <= binom.ppf(0.9995, 500, 0.05)


@pytest.mark.slow
def test_wealth_has_mean_one():
    """Short games, where the mean is not carried by rare runs: thousands of three tokens, four standard errors."""
    rng = np.random.default_rng(1)
    p, q = laws(rng, 1)
    p, q = np.tile(p, (3, 1)), np.tile(q, (3, 1))
    wealth = np.exp([of_leak(p, q, pick(rng, p)).log_final for _ in range(4000)])
    assert wealth.mean() == pytest.approx(1.0, abs=4 * wealth.std() / np.sqrt(4000))
    wealth = np.exp([transform_process(rng.random(3)).log_final for _ in range(2000)])
    assert wealth.mean() == pytest.approx(1.0, abs=4 * wealth.std() / np.sqrt(2000))


@pytest.mark.parametrize(("share", "leader"), [(0.3, "too high"), (-0.6, "too low")])
def test_a_leak_is_found_in_both_directions(share, leader):
    rng = np.random.default_rng(2)
    p, q = laws(rng, 2000)
    towards = q if share > 0 else np.maximum(2 * p - q, 0.0)
    token = np.where(rng.random(2000) < abs(share), pick(rng, towards), pick(rng, p))
    found = of_leak(p, q, token)
    assert found.p < 1e-4
    assert found.crossing is not None
    assert found.crossing < 2000
    assert found.leader.startswith(leader)


@pytest.mark.parametrize(("power", "leader"), [(1.4, "too high"), (0.7, "too low")])
def test_a_temperature_is_found_in_both_directions(power, leader):
    rng = np.random.default_rng(3)
    p, _ = laws(rng, 1500)
    found = of_log_p(p, pick(rng, p**power))
    assert found.p < 1e-4
    assert found.leader.startswith(leader)


@pytest.mark.parametrize("shape", ["slope", "edges", "lump"])
def test_transforms_of_a_wrong_law_are_found(shape):
    rng = np.random.default_rng(4)
    lump = np.where(rng.random(1500) < 0.25, 0.35 + 0.2 * rng.random(1500), rng.random(1500))
    u = {"slope": rng.beta(1.0, 1.3, 1500), "edges": rng.beta(0.8, 0.8, 1500), "lump": lump}[shape]
    assert transform_process(u).p < 1e-4


def test_the_crossing_is_where_a_shorter_run_ends():
    rng = np.random.default_rng(5)
    u = rng.beta(1.0, 2.0, 500)
    found = transform_process(u, 0.01)
    assert transform_process(u[: found.crossing], 0.01).p <= 0.01
    assert transform_process(u[: found.crossing - 1], 0.01).p > 0.01


def test_the_past_maximum_is_kept():
    rng = np.random.default_rng(6)
    broken = rng.beta(1.0, 3.0, 200)
    alone, later = transform_process(broken), transform_process(np.concatenate([broken, rng.random(3000)]))
    assert later.log_max >= alone.log_max > later.log_final
    assert later.p == pytest.approx(np.exp(-later.log_max))
    assert later.crossing == alone.crossing


def test_sure_tokens_say_nothing():
    found = score_process(np.zeros(50), np.zeros(50), 0.0, 1.0)
    assert found.log_final == pytest.approx(0.0, abs=1e-12)
    assert found.p == pytest.approx(1.0)


def test_nothing_observed_is_no_evidence():
    assert transform_process(np.empty(0)) == AnytimeTest(0, 0.0, 0.0, 1.0, None, "")
    assert score_process(np.empty(0), np.empty(0), 0.0, 1.0).p == 1.0


def test_scores_out_of_their_range_are_refused():
    with pytest.raises(ValueError, match="do not lie"):
        score_process(np.array([1.2]), np.array([0.5]), 0.0, 1.0)
