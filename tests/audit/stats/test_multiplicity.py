import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.binomial import covered_quantile
from audit.stats.multiplicity import holm


def test_holm_by_hand_in_the_given_order():
    assert holm([0.03, 0.01, 0.04]).tolist() == pytest.approx([0.06, 0.03, 0.06])


def test_adjusted_values_never_exceed_one():
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_family_error_rate_of_independent_uniforms():
    rng = np.random.default_rng(1)
    false = sum(holm(rng.random(10)).min() < 0.05 for _ in range(2000))
    assert binom.ppf(0.0005, 2000, 0.0489) <= false <= binom.ppf(0.9995, 2000, 0.05)


def test_wilks_agrees_with_the_published_sample_size():
    # 4603 samples: the maximum covers the 99.9 % quantile with 99 % confidence
    assert covered_quantile(4603, 0.99) >= 0.999 > covered_quantile(4602, 0.99)


def test_wilks_without_samples_covers_nothing():
    assert covered_quantile(0) == 0.0


def test_wilks_coverage_by_simulation():
    rng = np.random.default_rng(2)
    maxima = rng.random((4000, 300)).max(axis=1)
    covered = float(np.mean(maxima >= covered_quantile(300, 0.99)))
    assert covered == pytest.approx(0.99, abs=3.3 * np.sqrt(0.01 * 0.99 / 4000))
