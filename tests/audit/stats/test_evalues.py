import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from audit.stats.evalues import across_interim_looks, average, calibrated, e_bh, e_holm, power_calibrated, product, to_p


def exponential_e(rng, shape, tilt=1.0):
    """Logs of likelihood ratios N(tilt, 1) against N(0, 1): e-values for normal noise."""
    return tilt * rng.standard_normal(shape) - tilt**2 / 2


def test_average_and_product_by_hand():
    logs = np.log([1.0, 3.0])
    assert average(logs) == pytest.approx(np.log(2.0))
    assert average(logs, [0.75, 0.25]) == pytest.approx(np.log(1.5))
    assert product(logs) == pytest.approx(np.log(3.0))
    assert (to_p(np.log(50.0)), to_p(-3.0)) == (pytest.approx(0.02), 1.0)


def test_weights_are_shares():
    with pytest.raises(ValueError, match="not shares of 1"):
        average([0.0, 0.0], [0.7, 0.7])


@pytest.mark.parametrize("exponent", [0.1, 0.5, 0.9])
def test_power_calibrator_has_mean_one(exponent):
    area, _ = quad(lambda p: float(np.exp(power_calibrated([p], exponent)[0])), 0, 1, limit=500)
    assert area == pytest.approx(1.0, abs=1e-3)


def test_mixed_calibrator_is_the_average_over_exponents():
    for p in (1e-6, 0.01, 0.5, 0.99):
        mixed, _ = quad(lambda k, p=p: k * p ** (k - 1), 0, 1)
        assert np.exp(calibrated([p])[0]) == pytest.approx(mixed, rel=1e-6)
    assert np.exp(calibrated([1.0])[0]) == pytest.approx(0.5)
    assert calibrated([0.0])[0] == np.inf


def test_calibrators_reject_no_more_than_their_level():
    p = np.random.default_rng(1).random(20_000)
    for logs in (calibrated(p), power_calibrated(p)):
        assert np.sum(logs >= np.log(20)) <= binom.ppf(0.9995, 20_000, 0.05)


def test_e_holm_against_all_subsets():
    rng = np.random.default_rng(2)
    logs = 3.0 * rng.standard_normal(6)
    found = e_holm(logs)
    for own in range(6):
        sets = [[j for j in range(6) if mask >> j & 1] for mask in range(64) if mask >> own & 1]
        assert found[own] == pytest.approx(min(average(logs[chosen]) for chosen in sets))


@pytest.mark.parametrize("dependent", [False, True])
def test_e_holm_keeps_the_family_error_rate(dependent):
    """2000 families of eight true nulls at 0.05, independent and almost equal."""
    rng, false = np.random.default_rng(3), 0
    for _ in range(2000):
        logs = exponential_e(rng, 8, 2.0)
        logs = np.full(8, logs[0]) + 0.0 if dependent else logs
        false += bool(np.any(e_holm(logs) >= np.log(20)))
    assert false <= binom.ppf(0.9995, 2000, 0.05)


def test_e_holm_rejects_strong_evidence_beside_weak():
    found = e_holm(np.log([2000.0, 0.5, 1500.0, 0.1]))
    assert (found >= np.log(100)).tolist() == [True, False, True, False]


def test_e_bh_by_hand():
    # thresholds 4 / (k alpha) at alpha 0.05: 80, 40, 26.7, 20
    assert e_bh(np.log([100.0, 50.0, 10.0, 1.0]), 0.05).tolist() == [True, True, False, False]
    assert e_bh(np.log([30.0, 30.0, 30.0, 30.0]), 0.05).all()
    assert not e_bh(np.log([70.0, 1.0, 1.0, 1.0]), 0.05).any()


def test_e_bh_keeps_the_false_discovery_rate_under_dependence():
    """1000 families: 15 nulls that share half of their noise, 5 faults; mean share of false discoveries."""
    rng, shares, found = np.random.default_rng(4), [], 0
    for _ in range(1000):
        noise = np.sqrt(0.5) * (rng.standard_normal(20) + rng.standard_normal())
        noise[:5] += 4.0
        rejected = e_bh(3.0 * noise - 4.5, 0.05)
        shares.append(rejected[5:].sum() / max(1, rejected.sum()))
        found += int(rejected[:5].sum())
    assert np.mean(shares) <= 0.05 + 4 * np.std(shares) / np.sqrt(1000)
    assert found > 0.5 * 5000


def test_looks_share_the_error_probability():
    assert across_interim_looks([0.04, 0.001, 0.5]).tolist() == pytest.approx([0.12, 0.003, 0.003])
    assert across_interim_looks([0.04, 0.001], [0.8, 0.2]).tolist() == pytest.approx([0.05, 0.005])
    with pytest.raises(ValueError, match="at most 1"):
        across_interim_looks([0.1, 0.1], [0.9, 0.9])


def test_five_looks_keep_their_level_and_uncorrected_ones_do_not():
    """3000 sums of normal noise, looked at five times, at 0.05."""
    sums = np.cumsum(np.random.default_rng(5).standard_normal((3000, 5)), axis=1) / np.sqrt(np.arange(1, 6))
    p = 2 * norm.sf(np.abs(sums))
    assert sum(across_interim_looks(row)[-1] < 0.05 for row in p) <= binom.ppf(0.9995, 3000, 0.05)
    assert np.sum(p.min(axis=1) < 0.05) > 2 * binom.ppf(0.9995, 3000, 0.05)


def test_infinite_evidence_stays_infinite():
    logs = np.array([np.inf, 0.0])
    assert e_holm(logs)[0] == pytest.approx(np.inf)
    assert e_bh(logs, 0.01).tolist() == [True, False]


def test_without_hypotheses_nothing_is_rejected():
    assert len(e_holm([])) == len(e_bh([])) == len(across_interim_looks([])) == 0
    with pytest.raises(ValueError, match="not shares of 1"):
        average([])
