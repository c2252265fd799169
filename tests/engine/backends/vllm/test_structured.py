"""Grammars in vLLM's words."""

import json

import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.vllm.options import sampling_of
from engine.backends.vllm.structured import requested_config, structured_config, structured_params
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec, constraint_of
from engine.core.types import Protocol, Request, SamplingParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
KEY = "structured_outputs_config"


def plan(library=None, beside=None, **engine):
    neighbour = None if beside is None else SamplingParams(structured=constraint_of({"regex": "a", "library": beside}))
    return EngineSpec(Protocol.GREEDY, library=library, beside=neighbour, engine=engine)


@pytest.mark.parametrize(
    ("document", "params"),
    [
        ({"json": SCHEMA}, {"json": json.dumps(SCHEMA)}),
        ({"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ({"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"grammar": 'start: "a"+'}, {"grammar": 'start: "a"+'}),
    ],
)
def test_each_kind_becomes_a_parameter_of_its_name(document, params):
    spec = constraint_of(document)
    assert structured_params(spec) == params
    asked = sampling_of(Request("r", (1,), SamplingParams(structured=spec)), None)
    assert asked["structured_outputs"] == params


def test_a_request_without_a_grammar_asks_for_none():
    assert "structured_outputs" not in sampling_of(Request("r", (1,), SamplingParams()), None)


def test_lark_that_vllm_would_read_as_ebnf_is_refused():
    with pytest.raises(InvalidRequest, match="vLLM reads a text with ::= as EBNF"):
        structured_params(constraint_of({"grammar": 'start: "::="'}))


def test_structural_tags_are_refused():
    with pytest.raises(InvalidRequest, match="structural_tag: not audited on vLLM"):
        structured_params(ConstraintSpec(ConstraintKind.STRUCTURAL_TAG, "{}"))


@pytest.mark.parametrize(("library", "backend"), [("llguidance", "guidance"), ("xgrammar", "xgrammar")])
def test_the_engines_library_follows_the_arms(library, backend):
    assert structured_config(plan(library)) == {KEY: {"backend": backend}}
    assert structured_config(plan(beside=library)) == {KEY: {"backend": backend}}


def test_an_arm_without_grammars_leaves_the_engine_alone():
    assert structured_config(plan()) == {}


def test_other_settings_of_grammars_stay_and_are_asked_for_by_name():
    config = structured_config(plan("xgrammar", structured_outputs_config={"disable_any_whitespace": True}))
    assert config == {KEY: {"backend": "xgrammar", "disable_any_whitespace": True}}
    assert requested_config(config) == {f"{KEY}.backend": "xgrammar", f"{KEY}.disable_any_whitespace": True}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (plan("xgrammar", beside="llguidance"), "beside: one engine of vLLM has one grammar library"),
        (plan("xgrammar", structured_outputs_config={"backend": "guidance"}), "is not the library of the arm"),
        (plan("outlines"), "vLLM has no library outlines; write one of: llguidance, xgrammar"),
    ],
)
def test_a_second_library_is_refused(wrong, words):
    with pytest.raises(InvalidRequest, match=words):
        structured_config(wrong)
