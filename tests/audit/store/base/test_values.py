from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.evidence.records import ArmKind, Level
from audit.store.base.canonical import jsonable, number, sha256_json, storable, to_json
from audit.store.base.ulid import encode_ulid, new_ulid


def test_json_has_no_nan_or_infinity():
    value = {"a": float("nan"), "b": [np.float64("inf"), np.float32(0.5)], "c": np.arange(2)}
    assert jsonable(value) == {"a": None, "b": [None, 0.5], "c": [0, 1]}


def test_enums_moments_and_tuples():
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert jsonable((ArmKind.BASELINE, Level.L3, moment)) == ["baseline", "L3", "2026-01-02T00:00:00+00:00"]


def test_what_has_no_json_form_is_refused():
    with pytest.raises(TypeError, match="object has no JSON form"):
        jsonable({"x": object()})


def test_canonical_json_ignores_order_of_keys_and_is_ascii():
    assert to_json({"b": 1, "a": "\u00e9"}) == '{"a":"\\u00e9","b":1}'
    assert sha256_json({"b": 1, "a": 2}) == sha256_json({"a": 2, "b": 1})


@pytest.mark.medium
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_canonical_json_is_strict_json_and_stable(value):
    once = to_json(value)
    again = json.loads(once, parse_constant=lambda name: pytest.fail(name))
    assert to_json(again) == once


def test_nan_becomes_null_and_infinity_stays():
    assert number(float("nan")) is None
    assert number(None) is None
    assert number(-math.inf) == -math.inf
    assert number(0.25) == 0.25


def test_text_without_nul_and_lone_surrogates():
    assert storable("a\x00b\ud800c\U0001f600") == "a\u2400b\ufffdc\U0001f600"


def test_ulid_of_known_parts():
    assert encode_ulid(0, 0) == "0" * 26
    assert encode_ulid(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25
    # 1469918176385 ms is the example time of the ULID specification: 01ARYZ6S41.
    assert encode_ulid(1469918176385, 0)[:10] == "01ARYZ6S41"


def test_ulid_bounds():
    with pytest.raises(ValueError, match="48 bits"):
        encode_ulid(2**48, 0)


def test_new_ulids_differ_and_sort_by_time():
    first = new_ulid()
    time.sleep(0.002)
    assert first < new_ulid()
    assert len({new_ulid() for _ in range(200)}) == 200
