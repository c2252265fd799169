"""Answers that must call a tool: how a family writes calls, the grammar made of it, and the bundled model under it."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import pytest

from audit.evidence.tool_calls import AnsweredOffer, defect
from engine.backends import open_backend
from engine.backends.call_grammar import KNOWN, CallForm, CallGrammars, form_of
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.local_target import LocalTarget
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec, constraint_of
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams, ToolOffer
from engine.record.tool_calls import parse_calls
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.engine.constraints.arms import LIBRARIES
from tests.engine.constraints.tagged import tagged

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
GO = {"name": "go"}
TEMPLATE = {
    "start_anchor": "assistant: ",
    "fields": {
        "content": {},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{content.name}", "arguments": "{content.arguments}"}},
        },
    },
}


def wrote(form, join="\n"):
    """A chat template that writes calls by a format, joined."""

    def write(messages):
        calls = [call["function"] for call in messages[-1]["tool_calls"]]
        texts = [form % {"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls]
        return f"user: {messages[0]['content']}\nassistant: {join.join(texts)}<end>"

    return write


OTHER = constraint_of({"structural_tag": tagged("tags_with_separator", separator="")})
HERE = '<call>{"name": "%(name)s", "arguments": %(arguments)s}</call>'


def offered(choice, structured=None, tools=(LOOK, GO)):
    return Request("r", (1,), SamplingParams(structured=structured), tools=ToolOffer(tools, choice))


def test_the_form_is_what_the_chat_template_writes():
    form = form_of(wrote(HERE), TEMPLATE)
    assert form == CallForm('<call>{"name": "', '", "arguments": ', "}</call>", "\n")
    assert form.written(KNOWN[:1]) == '<call>{"name": "first_name", "arguments": {"first_key": 1}}</call>'


def test_the_form_of_the_bundled_family():
    tokens = LocalTarget(ModelSource("bundled:target")).tokens
    form = form_of(tokens.write, tokens.template)
    assert form == CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "")


def failing(_messages):
    raise ValueError("roles must alternate")


@pytest.mark.parametrize(
    "write",
    [
        wrote('[{"name": "%(name)s", "arguments": %(arguments)s}]'),
        wrote("<call>%(name)s</call>"),
        wrote('<call>{"name": "%(name)s", "arguments": "text %(arguments)s"}</call>'),
        wrote('<call>{"arguments": %(arguments)s, "name": "%(name)s"}</call>'),
        wrote('<call>{"called": "%(name)s", "arguments": %(arguments)s}</call>'),
        failing,
    ],
    ids=["no markers", "no arguments", "arguments in a text", "arguments first", "another key", "refused"],
)
def test_a_family_that_writes_calls_in_another_way_has_no_form(write):
    assert form_of(write, TEMPLATE) is None


def test_the_grammar_has_a_tag_for_each_tool():
    spec = CallGrammars(wrote(HERE), TEMPLATE).constrained(offered("required")).sampling.structured
    format_ = spec.value["format"]
    assert [tag["begin"] for tag in format_["tags"]] == [
        '<call>{"name": "look", "arguments": ',
        '<call>{"name": "go", "arguments": ',
    ]
    assert {tag["content"]["json_schema"]["type"] for tag in format_["tags"]} == {"object"}
    assert (format_["separator"], format_["at_least_one"], format_["stop_after_first"]) == ("\n", True, False)


def test_a_named_tool_is_called_once():
    spec = CallGrammars(wrote(HERE), TEMPLATE).constrained(offered({"name": "go"})).sampling.structured
    (tag,) = spec.value["format"]["tags"]
    assert '"go"' in tag["begin"]
    assert spec.value["format"]["stop_after_first"]


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_other_requests_stay_as_they_are(choice):
    grammars = CallGrammars(None, None)
    for request in (offered(choice), Request("r", (1,), SamplingParams())):
        assert grammars.constrained(request) is request


def test_the_library_of_the_request_is_used():
    chosen = ConstraintSpec(ConstraintKind.CASE, "", "xgrammar")
    spec = CallGrammars(wrote(HERE), TEMPLATE).constrained(offered("required", chosen)).sampling.structured
    assert spec.library == "xgrammar"


def test_a_request_that_has_the_grammar_already_stays_as_it_is():
    grammars = CallGrammars(wrote(HERE), TEMPLATE)
    once = grammars.constrained(offered("required"))
    assert grammars.constrained(once) == once


@pytest.mark.parametrize(
    ("write", "template", "structured", "words"),
    [
        (wrote(HERE), TEMPLATE, OTHER, "has a grammar .structural_tag. and tool_choice required"),
        (wrote(HERE), TEMPLATE, constraint_of({"regex": "a"}), "has a grammar .regex. and tool_choice required"),
        (wrote(HERE), None, None, "has no response_template"),
        (None, TEMPLATE, None, "writes no calls that a grammar can follow"),
        (failing, TEMPLATE, None, "writes no calls that a grammar can follow"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line(write, template, structured, words):
    with pytest.raises(InvalidRequest, match=words) as raised:
        CallGrammars(write, template).constrained(offered("required", structured))
    assert "use tool_choice auto or none" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_scripted_models_write_no_calls():
    engine = open_backend("scripted", {"target": ModelSource("scripted:1")}).arm(EngineSpec(Protocol.GREEDY))
    with pytest.raises(InvalidRequest, match="writes no calls"):
        engine.require([offered("required")])


ROWS = [
    json.loads(line)
    for line in files("suites").joinpath("prompts/tool_choices.jsonl").read_text(encoding="utf-8").splitlines()
]


@cache
def backend():
    return open_backend("native", {"target": ModelSource("bundled:target"), "draft": ModelSource("bundled:draft")})


def answers(library, protocol, proposer, temperature, rows):
    spec = EngineSpec(
        protocol,
        rows=6,
        level=RecordLevel.TOKENS,
        proposer=proposer,
        gamma=4 if proposer else 0,
        draft="draft" if proposer == "draft_model" else None,
    )
    engine = backend().arm(spec)
    params = SamplingParams(temperature, max_new_tokens=72, structured=ConstraintSpec(ConstraintKind.CASE, "", library))
    wanted = []
    for row in rows:
        prompt = engine.encode(Prompt(tuple(row["messages"]), tuple(row["tools"]), None, row["tool_choice"]))
        offer = ToolOffer(tuple(row["tools"]), row["tool_choice"])
        wanted.append(Request(row["id"], prompt, params, stream_of(row["id"]), offer))
    return {each.request.id: each for each in engine.generate(wanted)}


@pytest.mark.medium
@pytest.mark.parametrize("library", LIBRARIES)
def test_answers_call_what_the_choice_demands(library):
    found = answers(library, Protocol.CHAIN, "draft_model", 1.0, ROWS[:6])
    ended = [each for each in found.values() if each.finish_reason is FinishReason.EOS]
    assert len(ended) >= 5
    for generation in ended:
        header = decode(generation.trace).header
        assert header.sampling.structured.kind is ConstraintKind.STRUCTURAL_TAG
        assert (header.facts["constraint"]["library"], header.facts["constraint"]["refused"]) == (library, None)
        offer, template = generation.request.tools, header.facts["tools"]["template"]
        parsed = parse_calls(generation.text, template, offer)
        assert defect(generation, AnsweredOffer(offer, parsed, template)) is None
        assert len(parsed.calls) == len(header.facts["tools"]["calls"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("protocol", "temperature"), [(Protocol.GREEDY, 0.0), (Protocol.GUMBEL, 1.0)])
def test_speculative_calls_are_those_of_plain_decoding(protocol, temperature, library):
    plain = answers(library, protocol, None, temperature, ROWS[:24])
    for proposer in ("draft_model", "ngram"):
        found = answers(library, protocol, proposer, temperature, ROWS[:24])
        assert {name: each.tokens for name, each in found.items()} == {
            name: each.tokens for name, each in plain.items()
        }
