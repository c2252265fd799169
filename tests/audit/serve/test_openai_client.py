"""OpenAI's own Python client against a real server: every route and every form of answer."""

from __future__ import annotations

import json

import pytest

from tests.audit.serve.server import TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
ASKED = [
    {
        "role": "user",
        "content": "Use create_event with title = Meeting with Semmibel, date = 2026-02-06, city = London.",
    }
]
EVENT = {
    "type": "function",
    "function": {
        "name": "create_event",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("title", "date", "city")},
            "required": ["title", "date", "city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}


def client_of(server, **options):
    from openai import OpenAI

    return OpenAI(base_url=server.url, api_key=options.pop("api_key", TOKEN), max_retries=0, timeout=300, **options)


@pytest.fixture(scope="module")
def client(pair):
    with client_of(pair) as made:
        yield made


def chat(client, **options):
    given = {"model": "bundled:target", "messages": ASKED, "temperature": 0, "max_tokens": 24}
    return client.chat.completions.create(**(given | options))


def complete(client, **options):
    given = {"model": "bundled:target", "prompt": "The black ladder", "temperature": 0, "max_tokens": 24}
    return client.completions.create(**(given | options))


def test_the_model_is_listed(client, pair):
    (listed,) = client.models.list().data
    assert (listed.id, listed.owned_by) == ("bundled:target", "specaudit")
    assert client.models.retrieve("bundled:target") == listed
    assert listed.model_extra["max_model_len"] == 1024


def test_a_chat_has_an_answer_its_counts_and_its_reason(client, pair):
    answer = chat(client)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith(f"chatcmpl-{pair.run}-")
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    drafts = answer.model_extra["metrics"]["speculative_decoding"]
    assert 0 < drafts["num_accepted_draft_tokens"] < answer.usage.completion_tokens
    assert drafts["num_spec_steps"] == len(drafts["per_step_drafted"]) == len(drafts["per_step_accepted"])
    # the fields without which AIPerf takes an account for none
    assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"]
    assert sum(kept * steps for kept, steps in enumerate(drafts["acceptance_histogram"])) == sum(
        drafts["per_step_accepted"]
    )
    assert drafts["mean_acceptance_length"] == 1 + drafts["num_accepted_draft_tokens"] / drafts["num_spec_steps"]
    assert drafts["draft_acceptance_rate"] == drafts["num_accepted_draft_tokens"] / drafts["num_draft_tokens"]


def test_an_answer_ends_where_it_must(client):
    assert chat(client, max_tokens=3).choices[0].finish_reason == "length"
    assert chat(client, max_completion_tokens=3).usage.completion_tokens == 3
    text = complete(client).choices[0].text
    stopped = complete(client, stop=["zzz", text[5:8]]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (text[: text.find(text[5:8])], "stop")
    assert stopped.model_extra["stop_reason"] == text[5:8]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_says_what_the_whole_answer_says(client, temperature):
    options = {"temperature": temperature, "seed": 7, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    whole = chat(client, **options)
    parts = list(chat(client, stream=True, stream_options={"include_usage": True}, **options))
    assert len(parts) > 4
    assert {part.id for part in parts} == {parts[0].id} != {whole.id}
    deltas = [choice for part in parts for choice in part.choices]
    assert "".join(each.delta.content or "" for each in deltas) == whole.choices[0].message.content
    assert [each.finish_reason for each in deltas if each.finish_reason] == [whole.choices[0].finish_reason]
    scores = [score for each in deltas if each.logprobs for score in each.logprobs.content]
    same = whole.choices[0].logprobs.content
    assert [(score.token, score.bytes) for score in scores] == [(score.token, score.bytes) for score in same]
    assert [score.logprob for score in scores] == pytest.approx([score.logprob for score in same], abs=1e-4)
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage


def test_a_stream_of_the_older_route_says_what_the_whole_answer_says(client):
    whole = complete(client, stop=["."], max_tokens=64)
    parts = list(complete(client, stop=["."], max_tokens=64, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_log_probabilities_are_those_of_the_target(client):
    from engine.backends.engine_spec import EngineSpec, ModelSource
    from engine.backends.native.backend import open_models
    from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
    from engine.record.trace import decode

    answer = chat(client, logprobs=True, top_logprobs=3, extra_body={"return_token_ids": True})
    (choice,) = answer.choices
    prompt, tokens = answer.model_extra["prompt_token_ids"], choice.model_extra["token_ids"]
    engine = open_models({"target": ModelSource("bundled:target")}).arm(
        EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.SCALARS)
    )
    request = Request("r", tuple(prompt), SamplingParams(max_new_tokens=24))
    (generation,) = engine.generate([request])
    assert list(generation.tokens) == tokens
    assert answer.usage.completion_tokens == len(tokens) == len(choice.logprobs.content)
    known = decode(generation.trace).logprob.tolist()
    assert [score.logprob for score in choice.logprobs.content] == pytest.approx(known, abs=1e-4)
    for score in choice.logprobs.content:
        tops = [each.logprob for each in score.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert tops[0] == score.logprob  # greedy
    text = b"".join(bytes(score.bytes) for score in choice.logprobs.content).decode()
    assert text == choice.message.content
    older = complete(client, prompt=prompt, logprobs=2).choices[0]
    assert older.logprobs.token_logprobs == pytest.approx(known, abs=1e-4)
    assert all(len(each) == 2 for each in older.logprobs.top_logprobs)
    assert [older.text[at:] for at in older.logprobs.text_offset[:3]] == [
        older.text[len("".join(older.logprobs.tokens[:at])) :] for at in range(3)
    ]


def test_several_choices_and_several_prompts_are_answers_of_their_own(client):
    answer = chat(client, n=3, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    assert texts == [choice.message.content for choice in chat(client, n=3, temperature=1, seed=5).choices]
    assert texts != [choice.message.content for choice in chat(client, n=3, temperature=1, seed=6).choices]
    several = complete(client, prompt=["The black ladder", "I can't"], n=2)
    alone = [complete(client, prompt=prompt).choices[0].text for prompt in ("The black ladder", "I can't")]
    assert [choice.text for choice in several.choices] == [alone[0], alone[0], alone[1], alone[1]]
    streamed = ["", "", ""]
    for part in chat(client, n=3, temperature=1, seed=5, stream=True):
        streamed[part.choices[0].index] += part.choices[0].delta.content or ""
    assert streamed == texts


def test_sampling_parameters_change_what_they_must(client):
    plain = complete(client, extra_body={"return_token_ids": True}).choices[0]
    first = plain.model_extra["token_ids"][0]
    away = complete(client, logit_bias={str(first): -100}, extra_body={"return_token_ids": True}).choices[0]
    assert first not in away.model_extra["token_ids"]
    assert complete(client, temperature=1, top_p=1e-6, seed=3).choices[0].text == plain.text
    assert complete(client, temperature=1, extra_body={"top_k": 1}, seed=3).choices[0].text == plain.text
    assert (
        complete(client, frequency_penalty=2, max_tokens=96).choices[0].text
        != complete(client, max_tokens=96).choices[0].text
    )
    seeds = {complete(client, temperature=1).choices[0].text for _ in range(4)}
    assert len(seeds) > 1, "requests without a seed draw fresh ones"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "create_event"}}])
def test_tools_are_called(client, choice, stream):
    answer = chat(client, tools=[EVENT], tool_choice=choice, max_tokens=96, stream=stream)
    if stream:
        deltas = [part.choices[0] for part in answer]
        calls = [call for each in deltas for call in each.delta.tool_calls or ()]
        reason = deltas[-1].finish_reason
        assert [call.index for call in calls] == list(range(len(calls)))
    else:
        calls, reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
    assert reason == "tool_calls"
    assert [call.function.name for call in calls] == ["create_event"]
    assert json.loads(calls[0].function.arguments)["date"] == "2026-02-06"


def test_tools_that_may_not_be_called_are_not(client):
    answer = chat(client, tools=[EVENT], tool_choice="none", max_tokens=48).choices[0]
    assert answer.message.tool_calls is None
    assert answer.finish_reason != "tool_calls"


def test_a_conversation_goes_on_after_a_call(client):
    first = chat(client, tools=[EVENT], tool_choice="required", max_tokens=96).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"}
    answer = chat(client, messages=[*ASKED, first.model_dump(exclude_none=True), result], tools=[EVENT])
    assert answer.usage.prompt_tokens > 40


def test_an_answer_has_the_form_that_it_must_have(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "counted", "schema": SCHEMA, "strict": True}}
    for temperature in (0, 1):
        answer = chat(client, response_format=wanted, max_tokens=128, temperature=temperature, seed=2).choices[0]
        assert answer.finish_reason == "stop"
        assert set(json.loads(answer.message.content)) == {"name", "count"}
    whole = chat(client, response_format={"type": "json_object"}, max_tokens=256).choices[0]
    if whole.finish_reason == "stop":
        assert isinstance(json.loads(whole.message.content), dict)
    chosen = complete(client, extra_body={"structured_outputs": {"choice": ["north", "south"]}}).choices[0].text
    assert chosen in ("north", "south")


def test_a_request_beyond_the_context_is_refused(client):
    from openai import BadRequestError

    for options in ({"max_tokens": 1020}, {"messages": [{"role": "user", "content": "word " * 3000}]}):
        with pytest.raises(BadRequestError) as caught:
            chat(client, **options)
        assert caught.value.code == "context_length_exceeded"
        assert "1024" in caught.value.message


def test_refusals_are_those_that_the_client_knows(client, pair):
    from openai import AuthenticationError, BadRequestError, NotFoundError

    with pytest.raises(NotFoundError, match="not served here"):
        chat(client, model="gpt-5")
    with pytest.raises(BadRequestError) as caught:
        chat(client, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(BadRequestError, match="no such parameter"):
        chat(client, extra_body={"top_a": 0.5})
    with pytest.raises(BadRequestError, match="type text"):
        chat(client, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    with pytest.raises(BadRequestError):
        chat(client, response_format=broken)
    with client_of(pair, api_key="another") as stranger, pytest.raises(AuthenticationError):
        stranger.models.list()
