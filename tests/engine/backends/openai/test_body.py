"""What is sent: everything that was asked for, and nothing that the server does not know."""

import dataclasses

import pytest

from engine.backends.interface import Prompt
from engine.backends.openai.client import MOST_BYTES, answer_bytes
from engine.backends.openai.request import body_of, path, require_known, seed_of, streamed
from engine.backends.openai.settings import DIALECTS, settings_of
from engine.core.errors import InvalidRequest
from engine.core.types import Request, SamplingParams

URL = "http://127.0.0.1:8000/v1"
CHAT = Prompt(({"role": "user", "content": "Hi"},), ({"name": "go", "parameters": {}},))
SAMPLED = SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=9, stop=("x",), logit_bias=((5, -1.0),), seed=3)


def body(prompt=CHAT, ids=None, sampling=SAMPLED, salt="s", **engine):
    return body_of(settings_of({"url": URL, **engine}), "m", prompt, ids, Request("r", (1,), sampling, 8), salt, {})


def test_a_chat_for_a_server_that_knows_openais_own_parameters():
    assert body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "go", "parameters": {}}}],
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_completion_tokens": 9,
        "stop": ["x"],
        "logit_bias": {"5": -1.0},
        "seed": seed_of(Request("other", (1,), SAMPLED, 8), "s", 63),
    }


def test_parameters_that_are_off_are_sent_too():
    sent = body(server="vllm")
    assert {key: sent[key] for key in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")} == {
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "ignore_eos": False,
    }
    assert (sent["return_token_ids"], sent["max_tokens"]) == (True, 9)
    llama = body(server="llama.cpp")
    assert llama["repeat_penalty"] == 1.0
    assert llama["samplers"] == ["penalties", "temperature", "min_p", "top_k", "top_p"]
    assert llama["repeat_last_n"] > 64


def test_the_other_route_takes_tokens_or_text():
    text = Prompt(text="def")
    assert body(text, api="completions")["prompt"] == "def"
    assert body(text, (4, 5), api="completions")["prompt"] == [4, 5]
    assert body(text, (4, 5), api="completions", logprobs=3)["logprobs"] == 3
    assert body(text, (4, 5), api="completions")["max_tokens"] == 9
    assert path(settings_of({"url": URL, "api": "completions"})) == "/completions"


def test_choices_of_tools_go_with_tools_alone_and_formats_with_every_chat():
    engine = {"tool_choice": "required", "response_format": {"type": "json_object"}}
    assert {key: body(**engine)[key] for key in engine} == engine
    plain = body(Prompt(CHAT.messages), **engine)
    assert "tool_choice" not in plain
    assert "tools" not in plain
    assert plain["response_format"] == engine["response_format"]


def test_no_log_probabilities_are_asked_for_with_0():
    assert not {"logprobs", "top_logprobs"} & set(body(logprobs=0))


def test_further_keys_and_streams():
    assert body(body={"cache": False})["cache"] is False
    assert streamed({"a": 1}) == {"a": 1, "stream": True, "stream_options": {"include_usage": True}}


def test_seeds_depend_on_seed_stream_and_salt_and_fit():
    first = Request("r", (1,), SAMPLED, 8)
    others = (
        (first, "t"),
        (dataclasses.replace(first, stream=9), "s"),
        (dataclasses.replace(first, sampling=dataclasses.replace(SAMPLED, seed=4)), "s"),
    )
    assert len({seed_of(*each, 63) for each in ((first, "s"), *others)}) == 4
    assert all(0 <= seed_of(first, str(i), 31) < 2**31 for i in range(50))
    assert max(seed_of(first, str(i), 63) for i in range(50)) > 2**61


@pytest.mark.parametrize("server", list(DIALECTS))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 5),
        ("min_p", 0.1),
        ("repetition_penalty", 1.2),
        ("min_tokens", 3),
        ("stop_token_ids", (4,)),
        ("ignore_eos", True),
        ("bad_words", ((3,),)),
        ("presence_penalty", 0.5),
        ("logit_bias", ((1, 1.0),)),
    ],
)
def test_a_parameter_is_sent_or_refused(server, name, value):
    sampling = dataclasses.replace(SAMPLED, **{name: value})
    settings = settings_of({"url": URL, "server": server})
    sent = body(sampling=sampling, server=server) != body(server=server)
    if sent and not (server == "llama.cpp" and name == "presence_penalty"):
        require_known(settings, "r", sampling)
    else:
        with pytest.raises(InvalidRequest, match=f"r: a server of kind {server} has no {name}"):
            require_known(settings, "r", sampling)


def test_an_answer_of_sglangs_own_route_has_the_bytes_of_any_other():
    native = {"sampling_params": {"max_new_tokens": 50}, "top_logprobs_num": 3}
    common = {"max_tokens": 50, "logprobs": 3}
    assert abs(answer_bytes(native) - answer_bytes(common)) < 1000
    # each part of a stream repeats the answer so far
    assert answer_bytes({**native, "stream": True}) == MOST_BYTES
    assert "stream_options" not in streamed(native)
