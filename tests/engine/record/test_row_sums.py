"""Sums over parts of a row are those of its entries."""

import numpy as np
import pytest

from engine.record.rows.row_laws import BLOCK, RowSums


@pytest.mark.parametrize("size", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 37])
def test_sums_are_those_of_the_entries(size):
    rng = np.random.default_rng(size)
    for _ in range(20):
        row = rng.random(size)
        sums, token = RowSums.of(row), int(rng.integers(size))
        ids = rng.permutation(size)[: int(rng.integers(1, 41))]
        numbers = [sums.total, sums.below(token), sums.outside(ids)]
        assert numbers == pytest.approx([row.sum(), row[:token].sum(), np.delete(row, ids).sum()], rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("size", [30, 3 * BLOCK, 3 * BLOCK + 5])
def test_a_sum_is_zero_only_if_every_entry_is(size):
    row = np.zeros(size)
    row[[1, size - 1]] = 1.0, 1e-300
    sums = RowSums.of(row)
    assert sums.outside(np.array([1])) == 1e-300
    assert sums.outside(np.array([1, size - 1])) == sums.below(1) == 0.0
