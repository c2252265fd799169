"""Grammars in suites and prompt files: whose a request has, and mistakes found before a model is loaded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from audit.errors import UserError
from audit.suite.loader import load_suite
from audit.suite.structured import sampling_of
from engine.core.structured import ConstraintKind, constraint_of
from tests.audit.suite_files import CHAT, SUITE, write_suite

WITH_REGEX = SUITE.replace("{max_new_tokens: 16}", "{max_new_tokens: 16, structured: {regex: 'a+'}}")
ROW = '{"id": "c", "prompt": "Yes?", "structured": %s}\n'


def written(folder: Path, text: str = SUITE, row: object | None = None) -> Path:
    path = write_suite(folder, text)
    if row is not None:
        (folder / "chat.jsonl").write_text(ROW % json.dumps(row) + CHAT)
    return path


def test_an_arms_grammar_is_that_of_every_case(tmp_path):
    suite = load_suite(written(tmp_path, WITH_REGEX))
    for arm in suite.arms:
        assert arm.sampling.structured == constraint_of({"regex": "a+"})
        assert {sampling_of(arm.sampling, case).structured for case in suite.cases} == {arm.sampling.structured}


def test_a_case_brings_its_own_and_arms_choose_the_library(tmp_path):
    chosen = SUITE.replace("{temperature: 0.8}", "{temperature: 0.8, structured: {library: xgrammar}}")
    suite = load_suite(written(tmp_path, chosen, {"choice": ["yes", "no"]}))
    found = {
        arm.name: {case.id: sampling_of(arm.sampling, case).structured for case in suite.cases} for arm in suite.arms
    }
    own = constraint_of({"choice": ["yes", "no"]})
    assert found["greedy"] == {"tools/a": None, "tools/b": None, "chat/c": own}
    assert found["sampled"]["chat/c"] == dataclasses.replace(own, library="xgrammar")
    assert suite.arms[0].sampling.structured.kind is ConstraintKind.CASE


def test_a_cases_grammar_comes_before_the_arms(tmp_path):
    suite = load_suite(written(tmp_path, WITH_REGEX, {"regex": "b"}))
    found = [sampling_of(suite.arms[0].sampling, case).structured.source for case in suite.cases]
    assert found == ["a+", "a+", "b"]


def test_arms_with_a_grammar_run_its_checks_by_default(tmp_path):
    _, sampled = load_suite(written(tmp_path, WITH_REGEX)).arms
    assert {"constraint_replay", "schema_conformance"} <= set(sampled.checks)
    (tmp_path / "other").mkdir()
    _, plain = load_suite(written(tmp_path / "other")).arms
    assert not {"constraint_replay", "schema_conformance"} & set(plain.checks)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("16}", "16, structured: {regex: '(a'}}", "suite.yaml:11: structured regex: llguidance refuses it"),
        ("16}", "16, structured: {}}", "suite.yaml:11"),
        ("16}", "16, structured: {regex: a, choice: [b]}}", "has both regex and choice"),
        ("16}", "16, min_tokens: 2, structured: {regex: a}}", "min_tokens must be 0 with structured"),
        ("16}", "16, structured: {json: {type: number, minimum: wide}}}", "is no JSON Schema at minimum"),
        ("16}", "16, structured: {regex: a, library: outlines}}", "library"),
        (
            "16}",
            "16, structured: {structural_tag: {triggers: [a]}}}",
            "suite.yaml:11: structured structural_tag has the key",
        ),
        ("0.8", "0.8, structured: {json: {uniqueItems: true}, library: xgrammar}", "suite.yaml:25"),
    ],
)
def test_mistakes_in_a_suite_name_the_line(tmp_path, ours, theirs, words):
    with pytest.raises(UserError) as error:
        load_suite(written(tmp_path, SUITE.replace(ours, theirs, 1)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"regex": "[b"}, "chat.jsonl:1: structured regex: llguidance refuses it"),
        ({"json": {"uniqueItems": True, "type": "array"}}, "chat.jsonl:1: structured json: llguidance refuses it"),
        ({"json": {"type": "objekt"}}, "chat.jsonl:1: structured json is no JSON Schema at type"),
        ({"regex": "a", "choice": ["b"]}, "chat.jsonl:1"),
        ({"library": "xgrammar"}, "chat.jsonl:1"),
    ],
)
def test_mistakes_in_a_row_name_the_line(tmp_path, row, words):
    with pytest.raises(UserError) as error:
        load_suite(written(tmp_path, SUITE, row))
    assert words in str(error.value)


def served(folder, row, **engine):
    """A suite at an endpoint whose only case has a grammar."""
    (folder / "rows.jsonl").write_text(
        json.dumps({"id": "a", "prompt": "Yes?", **({"structured": row} if row else {})})
    )
    arm = {"name": "a", "proposer": {"kind": "served", "gamma": 2}, "verifier": "greedy"}
    document = {
        "version": 1,
        "name": "served",
        "backend": "openai",
        "models": {"target": "served:m"},
        "engine": {"url": "http://127.0.0.1:8000/v1", **engine},
        "workloads": [{"name": "w", "prompts": "rows.jsonl"}],
        "arms": [arm],
    }
    path = folder / "suite.yaml"
    path.write_text(json.dumps(document, indent=1))
    return path


def test_an_endpoint_is_asked_for_grammars_and_judged_without_masks(tmp_path):
    (arm,) = load_suite(served(tmp_path, {"choice": ["yes", "no"]}, server="vllm")).arms
    assert "schema_conformance" in arm.checks
    assert "constraint_replay" not in arm.checks
    # its own library compiles the grammar: what ours refuses is not refused here
    assert (
        load_suite(served(tmp_path, {"json": {"type": "array", "uniqueItems": True}})).cases[0].structured is not None
    )


@pytest.mark.parametrize(
    ("row", "engine", "words"),
    [
        ({"regex": "a"}, {}, "rows.jsonl:1: a server of kind openai has no structured regex on the chat route"),
        ({"json": {"type": "objekt"}}, {}, "rows.jsonl:1: structured json is no JSON Schema at type"),
        ({"json": {}}, {"api": "completions"}, "rows.jsonl:1: a server of kind openai has no structured json"),
        ({"json": {}}, {"response_format": {"type": "text"}}, "structured and engine.response_format both ask"),
    ],
)
def test_what_a_server_cannot_be_asked_for_names_the_line(tmp_path, row, engine, words):
    with pytest.raises(UserError) as error:
        load_suite(served(tmp_path, row, **engine))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_grammar_of_an_endpoints_arms_names_its_place(tmp_path):
    path = served(tmp_path, None)
    document = {**json.loads(path.read_text()), "sampling": {"structured": {"choice": ["a"]}}}
    path.write_text(json.dumps(document, indent=1))
    with pytest.raises(UserError, match=r"suite\.yaml:\d+: a server of kind openai has no structured choice"):
        load_suite(path)


def test_engines_without_grammars_refuse_them(tmp_path):
    text = WITH_REGEX.replace("seed: 7", "seed: 7\nbackend: transformers").replace("kind: ngram", "kind: prompt_lookup")
    with pytest.raises(UserError, match="backend transformers has no grammars, these have: native, scripted"):
        load_suite(written(tmp_path, text))
