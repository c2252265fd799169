import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.anytime.scores import leak_estimate, leak_scores, log_p_scores, moments, picked, score_test
from tests.support.tiers import fast_first


def laws(seed, n, vocabulary=10, concentration=0.3):
    rng = np.random.default_rng(seed)
    return rng, *(rng.dirichlet(np.full(vocabulary, concentration), size=n) for _ in range(2))


def sample(rng, p):
    return (np.cumsum(p, axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(0, p.shape[1] - 1)


def test_moments_by_enumeration():
    p = np.array([[0.5, 0.3, 0.2]])
    s = np.array([[1.0, 2.0, 4.0]])
    found = moments(s, p)
    mean = 1.9
    assert found.mean[0] == pytest.approx(mean)
    assert found.variance[0] == pytest.approx(0.5 * 0.81 + 0.3 * 0.01 + 0.2 * 4.41)
    assert found.third[0] == pytest.approx(sum(w * (x - mean) ** 3 for w, x in zip(p[0], s[0], strict=True)))


def test_leak_score_lies_in_the_unit_interval_and_handles_empty_cells():
    scores = leak_scores(np.array([[0.0, 0.5, 0.5]]), np.array([[0.0, 0.0, 1.0]]))
    assert scores.tolist() == [[0.0, 0.0, pytest.approx(2 / 3)]]


@pytest.mark.parametrize("score", fast_first(["log p", "leak"]))
@pytest.mark.parametrize("n", fast_first([40, 400]))
def test_false_alarm_rate_is_at_most_nominal_and_not_far_below(score, n):
    rng, p, q = laws(n, n)
    scores = log_p_scores(p) if score == "log p" else leak_scores(p, q)
    expected, runs = moments(scores, p), 2000
    false = sum(score_test(picked(scores, sample(rng, p)), expected, 14.0).p < 0.01 for _ in range(runs))
    assert binom.ppf(0.0005, runs, 0.004) <= false <= binom.ppf(0.9995, runs, 0.01)


def test_few_skewed_scores_fall_back_to_a_bound():
    p = np.tile([0.999, 0.001], (30, 1))
    scores = log_p_scores(p)
    token = np.zeros(30, dtype=int)
    token[0] = 1
    test = score_test(picked(scores, token), moments(scores, p), 14.0)
    # one such token in 30 has probability 0.03: no evidence at 0.01
    assert test.p > 0.01


def test_constant_scores_say_nothing():
    p = np.eye(3)
    test = score_test(picked(log_p_scores(p), np.arange(3)), moments(log_p_scores(p), p), 14.0)
    assert (test.z, test.p) == (0.0, 1.0)


def test_leak_estimate_is_unbiased_and_its_bounds_cover():
    rng, p, q = laws(5, 2000)
    scores = leak_scores(p, q)
    expected, under_q, leak = moments(scores, p), np.sum(q * scores, axis=1), 0.1
    found = []
    for _ in range(300):
        mixed = np.where(rng.random(2000) < leak, sample(rng, q), sample(rng, p))
        found.append(leak_estimate(picked(scores, mixed), expected, under_q))
    shares = np.array([each.share for each in found])
    assert shares.mean() == pytest.approx(leak, abs=4 * shares.std() / np.sqrt(300))
    missed = sum(each.high < leak for each in found)
    assert missed <= binom.ppf(0.9995, 300, 0.015)


def test_detectable_share_is_found_nine_times_of_ten():
    rng, p, q = laws(6, 1500)
    scores = leak_scores(p, q)
    expected, under_q = moments(scores, p), np.sum(q * scores, axis=1)
    detectable = leak_estimate(picked(scores, sample(rng, p)), expected, under_q).detectable
    hits = 0
    for _ in range(200):
        mixed = np.where(rng.random(1500) < detectable, sample(rng, q), sample(rng, p))
        hits += score_test(picked(scores, mixed), expected, 1.0).p < 0.01
    assert binom.ppf(0.0005, 200, 0.85) <= hits


def test_equal_laws_show_no_leak():
    _, p, _ = laws(7, 50)
    scores = leak_scores(p, p)
    estimate = leak_estimate(picked(scores, p.argmax(axis=1)), moments(scores, p), np.sum(p * scores, axis=1))
    assert (estimate.share, estimate.high) == (0.0, 1.0)
