"""A mask is a function of the prefix: whatever was asked before leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest

from engine.constraints.compiled import BYTES, Grammars, PrefixConstraint, check, open_library
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec, constraint_of
from engine.core.types import SamplingParams
from tests.engine.constraints.arms import LIBRARIES
from tests.engine.constraints.tagged import tagged

ENDS = (0, 3)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CASES = {
    "json": (
        {"json": PERSON},
        b'{"name": "a\xc3\xa9", "age": -12}',
        [b'{"nbme', b'{"name": 3', b'{"name": "a", "age": "'],
    ),
    "regex": ({"regex": "a(b|c)*d"}, b"abccbd", [b"b", b"ad"[:1] + b"e"]),
    "choice": ({"choice": ["yes", "yes, please", "no"]}, b"yes, please", [b"yea", b"nn"]),
    "tags": (
        {"structural_tag": tagged("triggered_tags", triggers=["<f="], at_least_one=True)},
        b'<f=a>{"x": 1}</f> and <f=b>true</f>.',
        [b"so", b"<f=c", b"<f=a>1", b'<f=a>{"x": 1}.'],
    ),
    "lark": ({"grammar": 'start: pair+\npair: "(" pair* ")"'}, b"(()())()", [b")", b"(]"]),
}


def constraint(document, library) -> PrefixConstraint:
    spec = constraint_of(document, library)
    return PrefixConstraint(open_library(library, BYTES).compile(spec), BYTES, ENDS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
def test_masks_do_not_depend_on_what_was_asked_before(case, library):
    document, whole, wrong = CASES[case]
    spec = constraint_of(document, library)
    compiled = open_library(library, BYTES).compile(spec)
    used = PrefixConstraint(compiled, BYTES, ENDS)
    generator = np.random.Generator(np.random.Philox(key=11))
    paths = [whole[:at] for at in range(len(whole) + 1)] + [part[:at] for part in wrong for at in range(len(part) + 1)]
    paths += [whole + b"\x00", whole + b"\x00z"]
    fresh = {path: PrefixConstraint(compiled, BYTES, ENDS)(list(path)) for path in paths}
    for at in generator.integers(len(paths), size=120):
        assert np.array_equal(used(list(paths[at])), fresh[paths[at]]), paths[at]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
def test_every_byte_of_an_answer_is_allowed_and_ends_only_where_it_is_whole(case, library):
    document, whole, _ = CASES[case]
    masks = constraint(document, library)
    for at, byte in enumerate(whole):
        assert masks(list(whole[:at]))[byte]
    assert all(masks(list(whole))[end] for end in ENDS)
    assert not any(masks([])[end] for end in ENDS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
def test_after_a_forbidden_or_an_end_token_only_end_tokens_are_left(case, library):
    document, whole, wrong = CASES[case]
    masks = constraint(document, library)
    for path in (whole + bytes([ENDS[0]]), *(part + b"zz" for part in wrong)):
        assert np.flatnonzero(masks(list(path))).tolist() == list(ENDS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_accepting_answer_may_go_on(library):
    masks = constraint(CASES["choice"][0], library)
    mask = masks(list(b"yes"))
    assert mask[ord(",")]
    assert mask[ENDS[0]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_complete_answer_leaves_end_tokens_only(library):
    masks = constraint(CASES["regex"][0], library)
    assert np.flatnonzero(masks(list(b"abd"))).tolist() == list(ENDS)


@pytest.mark.parametrize(
    ("document", "library", "words"),
    [
        ({"regex": "(a"}, "llguidance", "regex: llguidance refuses it"),
        ({"regex": "(a"}, "xgrammar", "regex: xgrammar refuses it"),
        *(
            ({kind: value}, "llguidance", f"{kind} has half of a surrogate pair")
            for kind, value in (
                ("json", {"type": "string", "pattern": "\ud800"}),
                ("regex", "\udfff"),
                ("choice", ["a", "\ud800"]),
                ("grammar", 'start: "\ud800"'),
                (
                    "structural_tag",
                    {"structures": [{"begin": "\ud800", "schema": {}, "end": "."}], "triggers": ["\ud800"]},
                ),
            )
        ),
        ({"json": {"type": "array", "uniqueItems": True}}, "llguidance", "uniqueItems"),
        ({"json": {"type": "array", "uniqueItems": True}}, "xgrammar", "does not enforce uniqueItems"),
        ({"json": {"properties": {"a": {"not": {}}}}}, "xgrammar", "does not enforce not"),
        (
            {"structural_tag": tagged("tags_with_separator", separator="", schema={"not": {}})},
            "xgrammar",
            "structural_tag: xgrammar does not enforce not",
        ),
        (
            {"structural_tag": tagged("tags_with_separator", separator="", schema={"type": "array", "contains": {}})},
            "llguidance",
            "structural_tag: llguidance refuses it",
        ),
        ({"grammar": "start: missing"}, "llguidance", "grammar: llguidance refuses it"),
        ({"grammar": "start: missing"}, "xgrammar", "grammar: xgrammar refuses it"),
    ],
)
def test_a_grammar_that_is_not_supported_is_refused_in_one_line(document, library, words):
    with pytest.raises(InvalidRequest, match=words) as error:
        check(constraint_of(document, library))
    assert "\n" not in str(error.value)


def test_names_of_properties_are_no_keywords():
    check(constraint_of({"json": {"type": "object", "properties": {"not": {"type": "null"}}}}, "xgrammar"))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'specaudit\[structured\]'"):
        open_library("llguidance", BYTES)


def test_an_answer_needs_an_end_token():
    grammars = Grammars(lambda: BYTES)
    with pytest.raises(InvalidRequest, match="needs an end token"):
        grammars.constraint(SamplingParams(structured=constraint_of({"regex": "a"})))
    assert grammars.constraint(SamplingParams()) is None


@pytest.mark.parametrize("more", [{"min_tokens": 2}, {"ignore_eos": True}])
def test_parameters_that_contradict_a_grammar_are_refused(more):
    with pytest.raises(InvalidRequest, match=next(iter(more))):
        SamplingParams(structured=constraint_of({"regex": "a"}), **more)


@pytest.mark.parametrize(
    "document", [{"json": PERSON}, {"regex": "a"}, {"choice": ["a", "b"]}, {"library": "xgrammar"}]
)
def test_documents_round_trip(document):
    spec = constraint_of(document)
    assert constraint_of(spec.document()) == spec
    assert spec.document() == {"library": "llguidance"} | document


@pytest.mark.parametrize("document", [{}, {"json": {}, "regex": "a"}, {"choice": []}, {"choice": [1]}, {"regex": 3}])
def test_documents_without_one_grammar_are_refused(document):
    with pytest.raises(InvalidRequest, match="structured"):
        constraint_of(document)


def test_the_library_alone_stands_for_each_cases_grammar():
    assert constraint_of({"library": "xgrammar"}) == ConstraintSpec(ConstraintKind.CASE, "", "xgrammar")
