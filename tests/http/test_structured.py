"""Answers under a grammar: asked for in the server's words and judged from their text."""

import json

import pytest

from audit.evidence.verdicts import Verdict
from engine.backends.openai.request import body_of
from engine.backends.openai.response import Completion, ToolCall
from engine.backends.openai.settings import settings_of
from engine.backends.openai.structured import problem_of
from engine.backends.openai.surface import judged_facts
from engine.core.errors import InvalidRequest
from engine.core.structured import constraint_of
from engine.core.types import FinishReason, Request, SamplingParams
from tests.http.asking import CHATS, answers, arm, asked
from tests.http.evidence import verdict
from tests.http.script import Misdeed, Script
from tests.support.tiers import fast_first

SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 12}},
    "required": ["place"],
    "additionalProperties": False,
}
PLACE = constraint_of({"json": SCHEMA})
WORDS = constraint_of({"choice": ["a city", "a name"]})
AT = {"url": "http://127.0.0.1:1/v1"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def body(spec, **engine):
    request = Request("r", (1,), SamplingParams(structured=spec))
    return body_of(settings_of({**AT, **engine}), "m", CHATS[0], (1,), request, "salt", {})


@pytest.mark.parametrize(
    ("document", "engine", "keys"),
    [
        ({"json": SCHEMA}, {}, {"response_format": FORMAT}),
        ({"json": SCHEMA}, {"server": "vllm"}, {"response_format": FORMAT}),
        ({"json": SCHEMA}, {"server": "llama.cpp"}, {"response_format": FORMAT}),
        ({"json": SCHEMA}, {"server": "vllm", "api": "completions"}, {"structured_outputs": {"json": SCHEMA}}),
        ({"regex": "a+"}, {"server": "vllm"}, {"structured_outputs": {"regex": "a+"}}),
        ({"choice": ["a", "b"]}, {"server": "vllm"}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"grammar": "start: /a/"}, {"server": "vllm"}, {"structured_outputs": {"grammar": "start: /a/"}}),
        ({"regex": "a+"}, {"server": "sglang"}, {"regex": "a+"}),
        ({"regex": "a+"}, {"server": "sglang", "api": "generate"}, {"regex": "a+"}),
        ({"json": SCHEMA}, {"server": "sglang", "api": "generate"}, {"json_schema": json.dumps(SCHEMA)}),
        ({"regex": "a+"}, {"server": "tensorrt-llm"}, {"response_format": {"type": "regex", "regex": "a+"}}),
        ({"json": SCHEMA}, {"server": "tensorrt-llm"}, {"response_format": {"type": "json", "schema": SCHEMA}}),
    ],
)
def test_each_kind_of_server_is_asked_in_its_own_words(document, engine, keys):
    form = {"response_format", "structured_outputs", "regex", "json_schema"}
    sent, without = (body(spec, **engine) for spec in (constraint_of(document), None))
    sent, without = (each.get("sampling_params", each) for each in (sent, without))
    assert {key: sent[key] for key in form & set(sent)} == keys
    assert not form & set(without)


@pytest.mark.parametrize(
    ("spec", "engine", "words"),
    [
        (WORDS, {}, "a server of kind openai has no structured choice on the chat route (it has: json); write another"),
        (WORDS, {"server": "sglang"}, "or set engine.server to a kind that has it: vllm"),
        (PLACE, {"api": "completions"}, "on the completions route (it has: none)"),
        (PLACE, {"response_format": {"type": "json_object"}}, "structured and engine.response_format both ask"),
        (WORDS, {"server": "vllm", "body": {"structured_outputs": {}}}, "engine.structured_outputs both ask"),
    ],
)
def test_what_a_server_cannot_be_asked_for_is_one_line(spec, engine, words):
    problem = problem_of({**AT, **engine}, spec)
    assert words in problem
    assert "\n" not in problem


def test_a_backend_refuses_it_before_it_sends_anything(serve):
    with serve() as server:
        engine = arm(server, server="openai")
        with pytest.raises(InvalidRequest, match="request arm/0#0: a server of kind openai has no structured choice"):
            next(engine.generate(asked(engine, structured=WORDS)))
        assert server.settings.seen == []


@pytest.mark.medium
@pytest.mark.parametrize("way", fast_first(["whole", "streamed", "both"]))
def test_finished_answers_follow_the_schema_and_cut_ones_are_counted_apart(serve, way):
    with serve() as plain, serve(gamma=3) as drafting:
        theirs = arm(plain, stream=way)
        baseline = answers(theirs, asked(theirs, structured=PLACE, max_new_tokens=40))
        engine = arm(drafting, stream=way, proposer="served")
        found = answers(engine, asked(engine, structured=PLACE, max_new_tokens=40))
        short = answers(engine, asked(engine, structured=PLACE, max_new_tokens=4))
    assert [each.tokens for each in found] == [each.tokens for each in baseline]
    assert {tuple(json.loads(each.text)) for each in found} == {("place",)}
    result = verdict("schema_conformance", found, baseline)
    assert (result.verdict, result.n, result.details["cut"]) == (Verdict.CERTIFIED, 3, 0)
    cut = verdict("schema_conformance", short)
    assert (cut.verdict, cut.details["cut"]) == (Verdict.INCONCLUSIVE, 3)


@pytest.mark.medium
def test_a_server_that_ignores_the_grammar_where_it_speculates_is_found(serve):
    with serve() as plain, serve(gamma=3, loose=True) as drafting:
        theirs, engine = arm(plain), arm(drafting, proposer="served")
        baseline = answers(theirs, asked(theirs, structured=PLACE, max_new_tokens=40))
        found = answers(engine, asked(engine, structured=PLACE, max_new_tokens=40))
    result = verdict("schema_conformance", found, baseline)
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 3.0)
    assert result.summary == "3 of 3 answers are invalid; 0 of 3 of the baseline's are"
    assert "'place' is a required property" in result.findings[0].message
    assert "the backend does not say whether the grammar library accepts it" in result.findings[0].message


@pytest.mark.medium
def test_a_wrong_byte_in_an_answer_is_no_json(serve):
    wrong = Misdeed(swap=('"content": "{', '"content": "{\\u0001'))
    with serve(gamma=3, fail=Script([wrong])) as server:
        engine = arm(server, rows=1, proposer="served")
        found = answers(engine, asked(engine, structured=PLACE, max_new_tokens=40))
    result = verdict("schema_conformance", found)
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 1.0)
    assert "it is no JSON" in result.findings[0].message


@pytest.mark.medium
def test_content_is_judged_without_its_reasoning_and_parts_instead_of_it_are_not(serve):
    said = Completion('{"place": "Rome"}', "stop", reasoning="Hm.")
    assert judged_facts(PLACE, said) == {"constraint": {"content": '{"place": "Rome"}'}}
    assert judged_facts(PLACE, Completion("{}", "stop")) == judged_facts(None, said) == {}
    refused = Completion("", "stop", refusal="No.")
    called = Completion("", "tool_calls", tool_calls=(ToolCall("look", "{}"),))
    assert judged_facts(PLACE, refused) == {"constraint": {"instead": "a refusal"}}
    assert judged_facts(PLACE, called) == {"constraint": {"instead": "a tool call"}}
    thought = Misdeed(swap=('"content": "', '"reasoning": "Hm.", "content": "'))
    refusal = Misdeed(swap=('"content": "', '"refusal": "'))
    with serve(gamma=3, fail=Script([thought, refusal])) as server:
        engine = arm(server, rows=1, proposer="served")
        found = answers(engine, asked(engine, 2, structured=PLACE, max_new_tokens=40))
    assert [each.finish_reason for each in found] == [FinishReason.EOS] * 2
    result = verdict("schema_conformance", found)
    assert (result.verdict, result.n, result.details["not_judged"]) == (Verdict.INCONCLUSIVE, 1, 1)
    assert "the server answers with a refusal instead of a text" in result.summary
