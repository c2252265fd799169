"""Accounts of one answer that agree, and that do not."""

import dataclasses
import json

import pytest

from engine.backends.interface import Prompt
from engine.backends.openai.facts import reconciled, request_facts, switched
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.request import choice_of
from engine.backends.openai.response import Completion, ToolCall
from engine.backends.openai.retry import RequestResult
from engine.backends.openai.settings import settings_of
from engine.backends.openai.tokens import AnswerTokens, TokenOrigin
from engine.backends.openai.tool_calls import tool_facts
from engine.core.types import Request, SamplingParams, ToolOffer

TOKENS = (5, 6, 7)
READ = AnswerTokens(TOKENS, TokenOrigin.SERVER, (-1.0,) * 3)
ANSWER = Completion(
    "abc",
    "stop",
    token_ids=TOKENS,
    prompt_ids=(1, 2),
    pieces=tuple(Piece(each, -1.0) for each in "abc"),
    usage={"completion_tokens": 3},
    speculation={"drafted": 4, "accepted": 2, "per_step_accepted": [1, 1], "per_step_drafted": [2, 2]},
)
CHANGES = [
    ({"usage": {"completion_tokens": 4}}, "3 tokens, the usage counts 4"),
    ({"pieces": ANSWER.pieces[:2]}, "3 tokens, 2 log-probabilities"),
    ({"speculation": {"drafted": 1, "accepted": 2}}, "2 drafted tokens were accepted of 1"),
    ({"speculation": {"per_step_accepted": [3], "per_step_drafted": [2]}}, "step 0: 3 accepted of 2"),
    ({"speculation": {"per_step_accepted": [3, 0], "per_step_drafted": [4, 0]}}, "the steps before the last emitted"),
    ({"speculation": {"accepted": 2, "steps_by_accepted": [1, 1]}}, "by the lengths of its steps others"),
    ({"speculation": {"steps": 5}}, "3 tokens, 5 steps"),
    ({"finish": "tool_calls"}, "it ended with tool_calls and holds no call"),
    ({"prompt_ids": (1, 3)}, "the first difference is at 1"),
    ({"prompt_ids": (1, 2, 3)}, "a prompt of 3 tokens, ours has 2"),
]
STREAMED = [
    ({"content": "abd"}, "the streamed text differs: at character 2 'c' against 'd'"),
    ({"content": "ab"}, "the streamed text differs: at character 2"),
    ({"token_ids": (5, 6, 8)}, "the streamed token ids differ"),
    ({"finish": "length"}, "it ended with stop, streamed with length"),
    ({"pieces": None}, "3 log-probabilities, streamed 0"),
]


def mismatches(answer, streamed=None):
    return reconciled(RequestResult(1, answer, streamed=streamed), answer, READ, (1, 2))["mismatches"]


def test_accounts_that_agree():
    found = reconciled(RequestResult(1, ANSWER, streamed=ANSWER), ANSWER, READ, (1, 2))
    assert found["mismatches"] == []
    assert found["sources"] == ["answer", "usage", "log-probabilities", "speculation", "streamed answer", "prompt"]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_accounts_that_contradict_each_other(change, message):
    (found,) = mismatches(dataclasses.replace(ANSWER, **change))
    assert message in found


@pytest.mark.parametrize(("change", "message"), STREAMED)
def test_a_streamed_answer_that_is_another(change, message):
    (found,) = mismatches(ANSWER, dataclasses.replace(ANSWER, **change))
    assert message in found


@pytest.mark.parametrize(("finish", "count"), [("length", 0), ("stop", 1)])
def test_a_call_that_the_length_cuts_off_may_be_read_as_text(finish, count):
    whole = dataclasses.replace(ANSWER, finish=finish)
    parts = dataclasses.replace(whole, content="", tool_calls=(ToolCall("go", '{"a'),))
    assert len(mismatches(whole, parts)) == count


def test_counts_are_compared_with_the_servers_own_tokens_only():
    read = dataclasses.replace(READ, origin=TokenOrigin.TOKENIZER)
    answer = dataclasses.replace(ANSWER, usage={"completion_tokens": 4})
    assert reconciled(RequestResult(1, answer), answer, read, None)["mismatches"] == []


def facts(answer, read=READ, **engine):
    settings = settings_of({"url": "http://a/v1", **engine})
    return request_facts(settings, SamplingParams(), RequestResult(2, answer, lost=("http: 500",)), answer, read, None)


def test_what_is_told_of_an_answer_is_json():
    found = facts(ANSWER)
    assert json.loads(json.dumps(found)) == found
    assert (found["attempts"], found["lost"], found["tokens"]) == (2, ["http: 500"], "server")
    assert "level" not in found


def test_an_answer_that_shows_less_than_the_arm_says_so():
    read = AnswerTokens(TOKENS, TokenOrigin.CHARACTERS, less="the server names no token ids")
    found = facts(ANSWER, read)
    assert (found["level"], found["why"]) == (0, "the server names no token ids")
    assert "level" not in facts(ANSWER, read, logprobs=0)


@pytest.mark.parametrize(
    ("text", "valid"),
    [('{"a": 1}', True), ('{"a": 1', False), ('{"a": "\x06"}', False), ('{"a": NaN}', False), ("[" * 200_000, False)],
)
def test_json_is_parsed_by_another_parser_than_the_servers(text, valid):
    found = facts(dataclasses.replace(ANSWER, content=text), response_format={"type": "json_schema"})["json"]
    assert found["valid"] is valid
    assert valid or found["problem"]
    calls = facts(dataclasses.replace(ANSWER, tool_calls=(ToolCall("go", text),)))["tool_calls"]
    assert [(each["name"], each["valid"]) for each in calls] == [("go", valid)]
    assert "json" not in facts(ANSWER, response_format={"type": "text"})


OFFER = ToolOffer(({"name": "go"},), {"name": "go"})
OFFERING = Request("r", (1,), SamplingParams(), tools=OFFER)


def tools_of(request, answer):
    settings = settings_of({"url": "http://127.0.0.1:8000/v1"})
    return tool_facts(settings, request, RequestResult(1, answer), answer)


def test_calls_of_an_answer_are_those_of_the_server():
    two = dataclasses.replace(ANSWER, tool_calls=(ToolCall("go", '{"a": 1}'), ToolCall("go", "{}")))
    assert tools_of(OFFERING, two)["tools"] == {
        "offered": [{"name": "go"}],
        "choice": {"name": "go"},
        "parser": "the server",
        "calls": [{"name": "go", "arguments": {"a": 1}}, {"name": "go", "arguments": {}}],
    }
    cut = dataclasses.replace(ANSWER, tool_calls=(ToolCall("go", "{}"), ToolCall("go", '{"a')))
    fact = tools_of(OFFERING, cut)["tools"]
    assert len(fact["calls"]) == 1
    assert fact["problem"].startswith("the arguments of go: ")
    assert tools_of(dataclasses.replace(OFFERING, tools=None), two) == {}


@pytest.mark.parametrize(
    ("own", "arm", "sent"),
    [
        ("auto", None, None),
        ("auto", "required", "required"),
        ("none", "required", "none"),
        ({"name": "go"}, "auto", {"type": "function", "function": {"name": "go"}}),
    ],
)
def test_a_prompt_s_own_choice_comes_before_the_arm_s(own, arm, sent):
    settings = settings_of({"url": "http://127.0.0.1:8000/v1", **({} if arm is None else {"tool_choice": arm})})
    assert choice_of(settings, Prompt(tools=OFFER.tools, tool_choice=own)) == sent


@pytest.mark.parametrize(
    ("speculates", "told", "counted", "effective"),
    [
        (True, 0, {"drafted": 5}, {"speculation": True}),
        (True, 0, {"drafted": 0}, {"speculation": False}),
        (True, 0, {}, {}),
        (False, 0, {"drafted": 0}, {"speculation": False}),
        (False, 0, {"drafted": 5}, {}),
        (False, 0, {"drafted": 5, "finished": 3}, {"speculation": True}),
        (False, 0, {"drafted": 5, "finished": 4}, {}),
        (False, 2, {}, {"speculation": True}),
        (False, 0, {"drafted": 0, "restarted": True}, {}),
    ],
)
def test_whether_an_arm_drafted_on_a_switched_server(speculates, told, counted, effective):
    found = switched(speculates, told, counted, 3)["request"]
    assert found == {"requested": {"speculation": speculates}, "effective": effective}
