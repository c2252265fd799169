"""Rows of large vocabularies are read in another way, to the same numbers."""

import sys

import numpy as np
import pytest

from engine.core.types import SamplingParams
from engine.record.rows.row_laws import WIDE, largest, law_of
from engine.sampling.transforms import log_sum_exp, transform

SIZE = WIDE + 100
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=50),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_wide_row_has_the_law_of_the_engine(sampling, dtype):
    row = np.random.default_rng(1).normal(0, 3, SIZE).astype(dtype)
    before, law = row.copy(), law_of(row, sampling, int(row.argmax()))
    np.testing.assert_allclose(law.p, transform(row, [1], 1, sampling, ()).p, rtol=1e-12, atol=0)
    expected = log_sum_exp(row.astype(np.float64)[None] / (sampling.temperature or 1.0))[0]
    assert law.lse == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(row, before)


def test_a_wide_row_needs_no_torch(monkeypatch):
    row = np.random.default_rng(1).normal(0, 3, SIZE)
    with_torch = law_of(row, SETTINGS[1], int(row.argmax()))
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it then fails as where it is not installed
    without = law_of(row, SETTINGS[1], int(row.argmax()))
    np.testing.assert_allclose(without.p, with_torch.p, rtol=1e-15, atol=0)
    assert without.lse == pytest.approx(with_torch.lse, abs=1e-14)


@pytest.mark.parametrize("kind", ["spread", "ties", "one hot", "masked"])
def test_the_largest_of_a_wide_row_are_in_order(kind):
    rng = np.random.default_rng(2)
    rows = {
        "spread": rng.normal(0, 3, SIZE),
        "ties": rng.integers(0, 9, SIZE).astype(float),
        "one hot": np.eye(1, SIZE, 77)[0],
        "masked": np.where(rng.random(SIZE) < 0.001, rng.normal(0, 3, SIZE), -np.inf),
    }
    row = rows[kind]
    assert largest(row, 20).tolist() == sorted(range(SIZE), key=lambda i: (-row[i], i))[:20]
