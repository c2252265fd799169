"""Columns in few bytes: every value comes back to the last bit."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.record.container import pack, sealed, unpack
from engine.record.envelope import DAMAGE

TYPES = [np.dtype(code) for code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "?")]


def back(column, whole=()):
    content = pack({"a": 1}, {"x": column}, whole)
    found = unpack(content)
    assert found.document == {"a": 1}
    return found.columns["x"], len(content)


@pytest.mark.medium
@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from(TYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(max_dims=2, min_side=0, max_side=12))
    ),
    st.booleans(),
)
def test_every_column_comes_back(column, whole):
    found, _ = back(column, ("x",) if whole else ())
    assert (found.dtype, found.shape) == (column.dtype, column.shape)
    assert found.tobytes() == column.tobytes()
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("column", "most"),
    [
        (np.full(1000, np.nan), 8),
        (np.arange(50_000, 51_000, dtype=np.int32), 1008),
        (np.arange(1000, dtype=np.uint32) * 7919 % 60_000, 2000),
        (np.linspace(0, 1, 1000).astype(np.float32).astype(np.float64), 4000),
        (np.where(np.arange(1000) % 10 == 0, 0.1, 0.5), 125 + 900 * 4 + 100 * 8),
    ],
)
def test_a_column_takes_the_narrowest_form(column, most):
    found, size = back(column)
    assert found.tobytes() == column.tobytes()
    assert size - back(column[:0])[1] <= most + 20


def test_differences_of_large_numbers_do_not_overflow():
    column = np.array([0, 2**64 - 1, 1, 2**63], dtype=np.uint64)
    assert back(column)[0].tolist() == column.tolist()
    signed = np.array([-(2**63), 2**63 - 1, 0])
    assert back(signed)[0].tolist() == signed.tolist()


@pytest.mark.parametrize(
    "entry",
    [
        ["x", "f8", 0, "1", "f8"],
        ["x", "f8", 1, "1", "f8"],
        ["x", "f8", 2, "1", "f8"],
        ["x", "f8", 9, "1", "f8"],
        ["x", "O8", 3, "1", "f8"],
        ["x", "V8", 3, "p", "f8"],
        ["x", "f8", 3, "z", "f8"],
        ["x", "f8", 4, "p", "f8"],
        ["x", "f8", 3, "s", "f8", -1],
        ["x", "f8", 5, "d", "u1"],
    ],
)
def test_a_damaged_directory_is_refused(entry):

    head = json.dumps({"columns": [entry], "shapes": [[2**40], [-1], [1.0], [1], [2], [0]]}).encode()
    with pytest.raises(DAMAGE):
        unpack(sealed(len(head).to_bytes(4, "little") + head + bytes(8)))


def test_a_flipped_bit_is_refused():
    content = pack({}, {"x": np.arange(9)}, ())
    for at in range(len(content)):
        with pytest.raises(ValueError, match="checksum"):
            unpack(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
