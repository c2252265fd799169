"""Columns that wait on disk: their sums are numpy's, bit for bit, however the rows came and wherever they lie."""

import numpy as np
import pytest

from audit.stats import spooled
from audit.stats.pit import SmoothSums, legendre
from audit.stats.spooled import SpooledColumns

LENGTHS = (0, 1, 7, 8, 127, 129, 1000, 4097, 30_011)


def filled(values, kinds, rng):
    """Columns that got their rows in pieces of random lengths."""
    columns = SpooledColumns({"value": "f8", "kind": "u1"})
    at = 0
    while at < len(values):
        step = int(rng.integers(1, 700))
        columns.append({"value": values[at : at + step], "kind": kinds[at : at + step]})
        at += step
    return columns


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_sums_of_all_and_of_chosen_rows_are_those_of_numpy(monkeypatch, length, on_disk):
    monkeypatch.setattr(spooled, "ROWS", 512)
    monkeypatch.setattr(spooled, "IN_MEMORY", 64 if on_disk else 2**24)
    rng = np.random.default_rng(length)
    values, kinds = rng.normal(size=length) * 10 ** rng.uniform(-9, 9, length), rng.integers(0, 4, length)
    columns = filled(values, kinds, rng)
    assert len(columns) == length
    sizes = {"value": 8 * length, "kind": length}
    on_files = {name for name, file in columns._files.items() if file._file is not None}
    # pieces have up to 700 rows, so a column that reached the limit is on disk
    assert on_files == {name for name, size in sizes.items() if on_disk and size >= 64}

    def terms(block):
        return block["value"], block["value"] * block["value"]

    whole = columns.sums(("value",), terms)
    assert whole == spooled.ColumnSums(length, (float(np.sum(values)), float(np.sum(values * values))))
    for kind in range(5):
        rows = kinds == kind
        part = columns.sums(("value",), terms, lambda block, kind=kind: block["kind"] == kind, by=("kind",))
        assert part == spooled.ColumnSums(
            int(rows.sum()), (float(np.sum(values[rows])), float(np.sum(values[rows] * values[rows])))
        )
    columns.append({"value": np.ones(3), "kind": np.zeros(3)})
    assert columns.sums(("value",), lambda block: [block["value"]]).n == length + 3


def test_rows_of_other_columns_or_lengths_are_refused():
    columns = SpooledColumns({"value": "f8", "kind": "u1"})
    with pytest.raises(ValueError, match="columns of"):
        columns.append({"value": np.ones(3)})
    with pytest.raises(ValueError, match="columns of"):
        columns.append({"value": np.ones(3), "kind": np.zeros(2)})
    assert len(columns) == 0


@pytest.mark.parametrize("length", LENGTHS)
def test_sums_of_polynomials_do_not_depend_on_the_pieces(length):
    rng = np.random.default_rng(length)
    u, sums = rng.random(length), SmoothSums.none()
    for piece in np.split(u, np.sort(rng.integers(0, length + 1, 5))):
        sums = sums.add(piece)
    assert sums.n == length
    assert sums.polynomials.tobytes() == legendre(u).sum(axis=0).tobytes()
