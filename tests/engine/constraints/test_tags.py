"""Structural tags: three accounts of the same texts, the older form, and mistakes."""

from __future__ import annotations

import pytest

from audit.checks.schema_conformance.judges import judge_of
from engine.constraints.compiled import BYTES, open_library
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, constraint_of, read_tags
from tests.engine.constraints.arms import LIBRARIES
from tests.engine.constraints.tagged import POINT, tagged

A, B = '<f=a>{"x": 1}</f>', "<f=b>true</f>"
TEXTS = (
    "",
    "no tag",
    A,
    B,
    A + B,
    f"{A},{B}",
    f"first {A}, then {B}.",
    f"{A} and text",
    f"<{A}",
    "<f",
    "<f=c>1</f>",
    "<f=a>true</f>",
    '<f=a>{"x": "1"}</f>',
    '<f=a>{"x": 1, "y": 2}</f>',
    '<f=a>{ "x" : 1 }</f>',
    "<f=b> true</f>",
    "<f=b>true </f>",
    "<f=b>true</g>",
    "<f=b>true",
    "<f=b>nul",
    "<f=b>",
)
FLAGS = [{}, {"at_least_one": True}, {"stop_after_first": True}, {"at_least_one": True, "stop_after_first": True}]
FORMATS = [
    tagged(kind, **settings, **flags)
    for flags in FLAGS
    for kind, settings in (
        ("triggered_tags", {"triggers": ["<f="]}),
        ("triggered_tags", {"triggers": ["<f=a", "<f=b>"]}),
        ("tags_with_separator", {"separator": ""}),
        ("tags_with_separator", {"separator": ","}),
    )
]


@pytest.mark.parametrize("document", FORMATS, ids=lambda document: "-".join(map(str, document["format"].values()))[:40])
def test_both_libraries_and_the_judge_accept_the_same_texts(document):
    accounts = {text: [] for text in TEXTS}
    for library in LIBRARIES:
        spec = constraint_of({"structural_tag": document}, library)
        grammar = open_library(library, BYTES).compile(spec)
        for text in TEXTS:
            matcher = grammar()
            accounts[text].append(all(matcher.accept(byte) for byte in text.encode()) and matcher.complete())
    judge = judge_of(spec)
    found = {text: (*both, judge(text).problem is None) for text, both in accounts.items()}
    assert {text: three for text, three in found.items() if len(set(three)) > 1} == {}
    assert {True, False} == {three[0] for three in found.values()}


@pytest.mark.parametrize(
    ("document", "text", "words"),
    [
        (FORMATS[0], "<f=c>", "no tag begins at character 1"),
        (FORMATS[0], '<f=a>{"x": NaN}</f>', "NaN is no JSON number"),
        (FORMATS[0], '<f=a>{"x": "1"}</f>', "the schema refuses a value"),
        (FORMATS[3], f"{A};{B}", "no separator at character 18"),
        (FORMATS[6], "", "it has no tag"),
        (FORMATS[8], A + B, "it goes on after its first tag"),
    ],
)
def test_the_judge_says_what_is_wrong(document, text, words):
    assert words in (judge_of(constraint_of({"structural_tag": document}))(text).problem or "")


def test_repeated_keys_are_noted():
    assert judge_of(constraint_of({"structural_tag": FORMATS[0]}))('<f=a>{"x": 1, "x": 2}</f>').repeated_keys


def test_the_older_form_means_the_same():
    old = {
        "triggers": ["<f="],
        "structures": [
            {"begin": "<f=a>", "schema": POINT, "end": "</f>"},
            {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
        ],
    }
    spec = constraint_of({"structural_tag": old})
    assert spec == constraint_of({"structural_tag": tagged("triggered_tags", triggers=["<f="])})
    assert spec.kind is ConstraintKind.STRUCTURAL_TAG
    assert read_tags(spec.value).document() == spec.value


TAG = FORMATS[0]["format"]["tags"][0]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("<f=", "is no object"),
        ({}, "has no format"),
        ({"format": {"type": "or"}}, "write triggered_tags or tags_with_separator"),
        ({"type": "json", "format": FORMATS[2]["format"]}, "has another type"),
        (tagged("triggered_tags"), "has no triggers"),
        (tagged("triggered_tags", triggers=["<g="]), "begins with 0 of the triggers"),
        (tagged("triggered_tags", triggers=["<f", "<f="]), "begins with 2 of the triggers"),
        (tagged("triggered_tags", triggers=["<f="], excludes=["x"]), "has the key excludes"),
        (tagged("tags_with_separator", separator=1), "has a separator that is no text"),
        (tagged("tags_with_separator", separator="", at_least_one=1), "not true or false"),
        ({"format": {"type": "tags_with_separator", "tags": [TAG | {"end": ""}]}}, "without end"),
        (
            {"format": {"type": "tags_with_separator", "tags": [TAG | {"content": {"type": "any_text"}}]}},
            "no JSON Schema",
        ),
        ({"structures": [{"begin": "<f", "end": ">"}], "triggers": ["<"]}, "without a JSON Schema"),
    ],
)
def test_mistakes_are_one_line(document, words):
    with pytest.raises(InvalidRequest, match="structured structural_tag") as error:
        constraint_of({"structural_tag": document})
    assert words in str(error.value)
    assert "\n" not in str(error.value)
