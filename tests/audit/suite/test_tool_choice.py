"""Which call prompts with tools ask for: rows, workloads and the suite, and what a backend cannot carry out."""

import json

import pytest

from audit.errors import UserError
from audit.runs.prepare import offer_of
from audit.suite.loader import load_suite
from audit.suite.structured import sampling_of
from engine.core.structured import constraint_of
from engine.core.types import ToolOffer

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASK = [{"role": "user", "content": "Look."}]


def suite_of(folder, rows, *, backend="scripted", arm=None, workload=None, **document):
    lines = [json.dumps({"id": f"r{index}", "messages": ASK, **row}) for index, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    model = "scripted:1" if backend == "scripted" else "served:m"
    base = {
        "version": 1,
        "name": "choice",
        "backend": backend,
        "models": {"target": model},
        "workloads": [{"name": "w", "prompts": "rows.jsonl", **(workload or {})}],
        "arms": [{"name": "a", "proposer": {"kind": "ngram", "gamma": 2}, "verifier": "greedy", **(arm or {})}],
    }
    path = folder / "suite.yaml"
    path.write_text(json.dumps({**base, **document}, indent=1))
    return load_suite(path)


SERVED = {
    "backend": "openai",
    "engine": {"url": "http://127.0.0.1:8000/v1"},
    "arm": {"proposer": {"kind": "served", "gamma": 2}},
}


def test_a_row_comes_before_its_workload_and_that_before_the_suite(tmp_path):
    rows = [{"tools": [TOOL], "tool_choice": {"name": "look"}}, {"tools": [TOOL]}, {}]
    suite = suite_of(tmp_path, rows, workload={"tool_choice": "none"}, tool_choice="required", **SERVED)
    assert [offer_of(case) for case in suite.cases] == [
        ToolOffer((TOOL,), {"name": "look"}),
        ToolOffer((TOOL,), "none"),
        None,
    ]
    assert suite_of(tmp_path, rows, tool_choice="required", **SERVED).cases[1].tool_choice == "required"
    assert suite_of(tmp_path, rows[1:]).cases[0].tool_choice == "auto"


@pytest.mark.parametrize(
    ("rows", "document", "words"),
    [
        (
            [{"tools": [TOOL], "tool_choice": "required", "structured": {"regex": "a"}}],
            {},
            "rows.jsonl:1: structured beside a tool_choice that demands a call",
        ),
        ([{"tools": [TOOL]}], {"tool_choice": "required"}, "is not known to it; write one of: auto, none"),
        ([{"tools": [TOOL], "tool_choice": {"name": "look"}}], {}, "is a name, which is not known to it"),
        ([{"tools": [TOOL], "tool_choice": {"name": "gaze"}}], {}, 'rows.jsonl:1: tool_choice names "gaze"'),
        ([{"tool_choice": "none"}], {}, "rows.jsonl:1: tool_choice without tools; add them, or remove it"),
        ([{"tools": [TOOL], "tool_choice": "always"}], {}, "rows.jsonl:1: tool_choice"),
        ([{"tools": [TOOL], "tool_choice": {}}], {}, "lacks the key name"),
    ],
)
def test_a_choice_that_cannot_be_carried_out_is_one_line(tmp_path, rows, document, words):
    with pytest.raises(UserError) as raised:
        suite_of(tmp_path, rows, **document)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


NATIVE = {"backend": "native", "models": {"target": "bundled:target"}}
DEMANDING = [{"tools": [TOOL], "tool_choice": "required"}, {"tools": [TOOL]}]


def test_the_built_in_engine_makes_the_grammar_of_a_case_that_demands_a_call(tmp_path):
    suite = suite_of(tmp_path, DEMANDING, **NATIVE)
    (arm,) = suite.arms
    found = [sampling_of(arm.sampling, case).structured for case in suite.cases]
    assert found == [constraint_of({"library": "llguidance"}), None]
    assert sampling_of(arm.sampling, suite.cases[0], ours=False).structured is None
    assert {"constraint_replay", "schema_conformance"} <= set(arm.checks)


def test_engines_of_others_get_the_choice_alone(tmp_path):
    (arm,) = suite_of(tmp_path, DEMANDING, **SERVED).arms
    assert arm.sampling.structured is None


@pytest.mark.parametrize(
    ("rows", "sampling", "words"),
    [
        (DEMANDING, {"structured": {"regex": "a"}}, 'a grammar beside case "w/r0", whose tool_choice demands a call'),
        (DEMANDING, {"min_tokens": 2}, "min_tokens must be 0 with structured"),
        (
            [{"tools": [{"name": "look", "parameters": {"type": "objekt"}}], "tool_choice": "required"}],
            {},
            "rows.jsonl:1: structured json is no JSON Schema at type",
        ),
        (
            [{"tools": [{"name": "look", "parameters": {"not": {}}}], "tool_choice": {"name": "look"}}],
            {"structured": {"library": "xgrammar"}},
            "rows.jsonl:1: structured json: xgrammar does not enforce not",
        ),
    ],
)
def test_a_demanded_call_beside_what_contradicts_it_is_one_line(tmp_path, rows, sampling, words):
    with pytest.raises(UserError) as raised:
        suite_of(tmp_path, rows, sampling=sampling, **NATIVE)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("rows", "arm", "judged"),
    [
        ([{"tools": [TOOL]}], {}, True),
        ([{}], {}, False),
        ([{"tools": [TOOL], "tool_choice": "none"}], {}, False),
        ([{"tools": [TOOL]}], {"verifier": "chain", "sampling": {"temperature": 1}}, True),
        ([{"tools": [TOOL]}], {"verifier": "gumbel", "sampling": {"temperature": 1}}, True),
        ([{"tools": [TOOL]}], {"checks": ["accounting"]}, False),
    ],
)
def test_calls_are_judged_by_default_where_tools_are_offered(tmp_path, rows, arm, judged):
    (made,) = suite_of(tmp_path, rows, arm=arm).arms
    assert ("tool_call_equality" in made.checks) is judged


def test_arguments_of_the_template_add_up_and_belong_to_messages(tmp_path):
    rows = [{"chat_template_kwargs": {"b": 3, "c": 4}}, {}]
    suite = suite_of(
        tmp_path, rows, workload={"chat_template_kwargs": {"b": 2}}, chat_template_kwargs={"a": 1, "b": 1}, **SERVED
    )
    assert [case.template for case in suite.cases] == [{"a": 1, "b": 3, "c": 4}, {"a": 1, "b": 2}]
    (tmp_path / "rows.jsonl").write_text('{"id": "r", "prompt": "x"}')
    path = tmp_path / "suite.yaml"
    assert load_suite(path).cases[0].template == {}
    (tmp_path / "rows.jsonl").write_text('{"id": "r", "prompt": "x", "chat_template_kwargs": {}}')
    with pytest.raises(UserError, match=r"rows\.jsonl:1: chat_template_kwargs need the chat template"):
        load_suite(path)
    with pytest.raises(UserError, match="add_generation_prompt"):
        suite_of(tmp_path, rows, chat_template_kwargs={"add_generation_prompt": False}, **SERVED)
