"""JSON Schema, keyword beside keyword: a library enforces a schema whole, or refuses it.

A mask that is wider than its schema makes a clean engine look broken: check `schema_conformance` judges the answers.
"""

from __future__ import annotations

import itertools
import json

import pytest
from jsonschema import Draft202012Validator

from engine.constraints.compiled import check
from engine.constraints.interface import TokenSpelling
from engine.constraints.llguidance import LlguidanceLibrary
from engine.constraints.xgrammar import XgrammarLibrary
from engine.core.errors import InvalidRequest
from engine.core.structured import constraint_of

SPELLING = TokenSpelling(tuple(bytes([value]) for value in range(256)), lambda text: list(text.encode()))
LIBRARIES = {"llguidance": LlguidanceLibrary, "xgrammar": XgrammarLibrary}
BRANCHES = [
    {"type": "object", "required": ["a"], "properties": {"a": {}}},
    {"type": "string", "minLength": 3},
    {"type": "number", "minimum": 5},
    {"type": "array", "minItems": 2},
]
KEYWORDS = {
    "pattern": "^[a-z]+$",
    "format": "date",
    "minLength": 2,
    "maxLength": 5,
    "const": "ab",
    "enum": ["ab", 7],
    "minimum": 1,
    "maximum": 9,
    "exclusiveMinimum": 0,
    "multipleOf": 2,
    "minItems": 1,
    "maxItems": 3,
    "prefixItems": [{"type": "integer"}],
    "items": {"type": "integer"},
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "properties": {"a": {"type": "integer"}},
    "patternProperties": {"^x": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
    "propertyNames": {"type": "string", "pattern": "^a"},
    "maxProperties": 1,
    "required": ["a"],
    "not": {"type": "string"},
    "allOf": BRANCHES[1:2],
    "anyOf": BRANCHES,
    "oneOf": BRANCHES,
    "$ref": "#/$defs/x",
}
DEFINITIONS = {"x": {"type": ["string", "object", "integer"], "minLength": 3, "minimum": 2}}
VALUES = ["", "a", "ab", "abc", "A", "2020-01-01", "abcdef", -1, 0, 1, 2, 5, 7, 9, 10, 1.5, 100, None, True]
VALUES += [[], [1], ["a"], [1, 2], [1, 1], [1, 2, 3, 4], [1, "a"], {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"b": "x"}]
VALUES += [{"a": 1, "b": "x"}, {"xa": 1}, {"xa": "s"}, {"a": 1, "aa": "x"}]


def accepts(grammar, text):
    matcher = grammar()
    return all(matcher.mask()[byte] and matcher.accept(byte) for byte in text.encode()) and matcher.complete()


def schemas():
    for kind in ("string", "number", "integer", "array", "object", None):
        for names in itertools.chain(itertools.combinations(KEYWORDS, 1), itertools.combinations(KEYWORDS, 2)):
            schema = {name: KEYWORDS[name] for name in names} | ({"type": kind} if kind else {})
            yield schema | ({"$defs": DEFINITIONS} if "$ref" in names else {})


@pytest.mark.medium
@pytest.mark.parametrize("name", LIBRARIES)
def test_no_value_that_a_schema_refuses_is_an_answer(name, capfd):
    library, enforced, wrong = LIBRARIES[name](SPELLING), 0, []
    for schema in schemas():
        try:
            grammar = library.compile(constraint_of({"json": schema}, name))
        except InvalidRequest:
            continue
        valid = Draft202012Validator(schema)
        wide = [value for value in VALUES if not valid.is_valid(value) and accepts(grammar, json.dumps(value))]
        enforced += 1
        wrong += [(schema, wide[:3])] if wide else []
    assert wrong == []
    assert enforced > (600 if name == "llguidance" else 150)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "pattern": "a", "maxLength": 3}, "length beside pattern"),
        ({"type": "object", "required": ["b"], "properties": {"a": {}}}, "required of b, which is not among its"),
        ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}, "minimum beside \\$ref"),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "more than one schema in allOf"),
        ({"minLength": 2}, "minLength without a type"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf of schemas that one value may meet"),
        ({"type": "string", "enum": ["a", 1]}, "type beside enum"),
    ],
)
def test_what_xgrammar_would_drop_is_refused_by_name(schema, words):
    with pytest.raises(InvalidRequest, match=f"xgrammar does not enforce {words}"):
        check(constraint_of({"json": {"properties": {"p": schema}, "type": "object"}}, "xgrammar"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a", "b"], "description": "a word"},
        {"type": ["string", "null"], "minLength": 2},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string", "minLength": 3}, {"const": 1}], "title": "t"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "description": "d"},
    ],
)
def test_what_xgrammar_enforces_is_taken(schema):
    check(constraint_of({"json": schema}, "xgrammar"))
