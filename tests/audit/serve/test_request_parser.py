"""What a body asks for, and what is refused."""

from __future__ import annotations

import pytest

from audit.serve.limits import ServeLimits
from audit.serve.refusals import ApiRefusal
from audit.serve.request_parser import read_chat, read_completion
from engine.core.structured import ConstraintKind
from engine.core.types import SamplingParams

LIMITS = ServeLimits(context=100, tokens=50, choices=8)
MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**body):
    return read_chat({"messages": MESSAGES} | body, "m", LIMITS)


def complete(**body):
    return read_completion({"prompt": "hello"} | body, "m", LIMITS)


def refusal(read, **body):
    with pytest.raises(ApiRefusal) as caught:
        read(**body)
    return caught.value


def test_the_defaults_are_openais():
    asked = chat()
    settings = SamplingParams(**asked.settings, max_new_tokens=1)
    assert settings == SamplingParams(temperature=1.0, max_new_tokens=1)
    assert (asked.length, asked.n, asked.stream, asked.top, asked.seed, asked.tools) == (
        None,
        1,
        False,
        None,
        None,
        None,
    )
    assert complete().length == 16
    assert asked.domain == "served"


def test_null_is_absent():
    assert chat(temperature=None, stop=None, tools=None, nothing_known=None) == chat()


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 7}, "top_k", 7),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"logit_bias": {"7": -100, "3": 1.5}}, "logit_bias", ((3, 1.5), (7, -100.0))),
        ({"stop_token_ids": [4]}, "stop_token_ids", (4,)),
        ({"min_tokens": 3}, "min_tokens", 3),
    ],
)
def test_settings_are_read(body, field, value):
    assert chat(**body).settings[field] == value
    assert complete(**body).settings[field] == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 1.0}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", 1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"max_tokens": 51}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"metadata": {"domain": "x" * 65}}, "metadata"),
        ({"metadata": {"domain": "a\x1b[2J"}}, "metadata"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body, param):
    for read in (chat, complete):
        found = refusal(read, **body)
        assert (found.status, found.param) == (400, param)
        assert found.document()["error"]["message"]


def test_another_model_is_not_found():
    assert (refusal(chat, model="other").status, refusal(chat, model="other").code) == (404, "model_not_found")
    assert chat(model="m") == chat()


def test_prompts_have_four_forms():
    assert [each.text for each in complete(prompt=["a", "b"]).prompts] == ["a", "b"]
    assert complete(prompt=[1, 2]).prompts == ((1, 2),)
    assert complete(prompt=[[1], [2, 3]]).prompts == ((1,), (2, 3))
    for wrong in (None, [], 3, ["a", 1], [[]], [-1], [True], [1.5], {"a": 1}):
        assert refusal(complete, prompt=wrong).param == "prompt"
    assert refusal(complete, prompt=["a"] * 5, n=2).param == "n"


def test_forms_of_answers():
    spec = chat(response_format={"type": "json_object"}).settings["structured"]
    assert (spec.kind, spec.value) == (ConstraintKind.JSON, {"type": "object"})
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert list(chat(response_format=wanted).settings["structured"].value["properties"]) == ["b", "a"]
    assert chat(response_format={"type": "text"}) == chat()
    assert refusal(chat, response_format=wanted, structured_outputs={"regex": "a"}).status == 400


def test_tools_and_choices():
    assert chat(tools=[TOOL]).tools.choice == "auto"
    assert chat(tools=[TOOL], tool_choice="required").tools.choice == "required"
    named = {"type": "function", "function": {"name": "f"}}
    assert chat(tools=[TOOL], tool_choice=named).tools.choice == {"name": "f"}
    assert chat(tools=[]).tools is None
    for choice in ("always", {"type": "function", "function": {"name": "g"}}, 3):
        assert refusal(chat, tools=[TOOL], tool_choice=choice).param == "tool_choice"
    assert refusal(chat, tool_choice="required").param == "tool_choice"
    for tools in ({}, [3], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}], [TOOL] * 129):
        if tools:
            assert refusal(chat, tools=tools).param == "tools"


def test_messages_become_what_templates_read():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    (prompt,) = chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]
    ).prompts
    first, second, third = prompt.messages
    assert first == {"role": "system", "content": "be brief"}
    assert second["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert second["content"] == ""
    assert third == {"role": "tool", "content": "done", "tool_call_id": "1"}


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        [3],
        [{"content": "x"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": 3}],
    ],
)
def test_messages_that_are_none_are_refused(messages):
    assert refusal(chat, messages=messages).param.startswith("messages")


def test_log_probabilities_have_two_forms():
    assert chat(logprobs=True).top == 0
    assert chat(logprobs=True, top_logprobs=5).top == 5
    assert refusal(chat, top_logprobs=5).param == "top_logprobs"
    assert refusal(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert complete(logprobs=3).top == 3
    assert complete(logprobs=0).top == 0
    assert refusal(complete, logprobs=True).param == "logprobs"


def test_a_body_is_an_object():
    for body in (None, [], "x", 3):
        with pytest.raises(ApiRefusal):
            read_completion(body, "m", LIMITS)
