from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.attach.splice import insert, object_at, parse, remove

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
KEYS = st.text().filter(lambda key: key != "audit")


def spliced(text: str, path: tuple[str, ...], block: dict[str, Any]) -> str:
    return insert(text, object_at(text, path), "audit", block)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    report=st.dictionaries(KEYS, VALUES, max_size=4),
    block=st.dictionaries(st.text(), VALUES, max_size=3),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    ascii_only=st.booleans(),
)
def test_what_is_put_in_comes_out_and_nothing_else_changes(report, block, indent, ascii_only):
    text = json.dumps(report, indent=indent, ensure_ascii=ascii_only)
    changed = spliced(text, (), block)
    assert json.loads(changed) == {**report, "audit": block}
    assert remove(changed, object_at(changed, ()), "audit") == text


@pytest.mark.parametrize(
    "text",
    [
        '{"config": {"a": 1.0e-05, "b": NaN, "c": -Infinity}, "z": 1e2}',
        '{\r\n  "config" : {\r\n    "a": [ 1 , 2 ]\r\n  }\r\n}\r\n',
        '  {"config":{ }  ,"b":"}{\\"config\\"" }\n\n',
        '{"b": {"config": {}}, "config": {"x": {"audit": 3}}}',
    ],
)
def test_spelling_outside_is_kept(text):
    changed = spliced(text, ("config",), {"run": "x"})
    assert parse(changed)["config"]["audit"] == {"run": "x"}
    assert remove(changed, object_at(changed, ("config",)), "audit") == text


def test_the_layout_of_the_object_is_followed():
    text = json.dumps({"config": {"a": 1}}, indent=4)
    changed = spliced(text, ("config",), {"run": "x"})
    assert changed == (
        '{\n    "config": {\n        "a": 1,\n        "audit": {\n          "run": "x"\n        }\n    }\n}'
    )


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('{"audit": 1, "a": 2}', '{"a": 2}'),
        ('{"audit": 1}', "{}"),
        ('{"a": 2, "audit": 1, "b": 3}', '{"a": 2, "b": 3}'),
    ],
)
def test_a_member_comes_out_wherever_it_is(text, rest):
    assert remove(text, object_at(text, ()), "audit") == rest


@pytest.mark.parametrize("text", ["[]", '{"config": 3}', "{}", '{"config": {}, "config": {}}'])
def test_no_single_object_at_the_path_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"object|has no|2 times"):
        object_at(text, ("config",))


def test_deep_nesting_is_a_value_error():
    with pytest.raises(ValueError, match="deep"):
        parse("[" * 100_000)
