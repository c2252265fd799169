"""The second account of an answer's text: from its ids, else from the names of its tokens."""

import dataclasses
import math

import pytest

from engine.backends.openai.decoding import BLANKS, NAMELESS, TextSource, decoded_facts, rules_of
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.response import Completion, StreamChunk, ToolCall
from engine.backends.openai.settings import settings_of
from engine.backends.openai.tokens import CharacterCodec, TokenOrigin, tokens_of
from engine.backends.second_decoding import SecondDecoding
from engine.core.types import FinishReason, Request, SamplingParams

WORDS = ("<end>", "one", " two", ",", " three")


class Words:
    """Ids are places in WORDS; 0 is the end."""

    origin = TokenOrigin.TOKENIZER
    vocabulary = len(WORDS)
    eos_ids = (0,)

    def ids(self, text):
        return ()

    def decoded(self, prompt, tokens, *, special):
        assert prompt == (9,), "the server's own"
        return SecondDecoding("".join(WORDS[i] for i in tokens if i or special))


def source(answer, body=None, streamed=None, codec=None, server="vllm", **sampling):
    request = Request("r", (1, 2), SamplingParams(**sampling))
    own = codec or Words()
    settings = settings_of({"url": "http://127.0.0.1:8000/v1", "server": server, "body": body or {}})
    read = tokens_of(answer, own, FinishReason.EOS)
    return TextSource(request, answer, streamed, read, own, rules_of(settings))


def by_ids(*ids, text="one two", finish="stop", **more):
    return Completion(text, finish, token_ids=ids, prompt_ids=(9,), **more)


@pytest.mark.parametrize(
    ("answer", "sampling", "decoded"),
    [
        (by_ids(1, 2, finish="length"), {}, "one two"),
        (by_ids(1, 2, 0, known_stop=True), {}, "one two"),
        (by_ids(1, 2, 0), {}, "one two"),
        # a token of stop_token_ids is not in the text, a stop string's tokens are in the second decoding
        (by_ids(1, 2, 3, known_stop=True, stop_reason=3), {}, "one two"),
        (by_ids(1, 2, 3), {"stop_token_ids": (3,)}, "one two"),
        (by_ids(1, 2, 3, known_stop=True, stop_reason=","), {"stop": (",",)}, "one two,"),
        (by_ids(1, 2, 3), {"stop": (",",)}, "one two,"),
        (by_ids(finish="stop"), {}, ""),
    ],
)
def test_ids_are_decoded_without_the_token_that_ended_the_answer(answer, sampling, decoded):
    assert decoded_facts(source(answer, **sampling)) == {"decoded": decoded}


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ({"skip_special_tokens": False}, {"decoded": "one two"}),
        (
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            {"decoded": "one two<end>", "decoding": {"stop_shown": True}},
        ),
        ({"include_stop_str_in_output": True}, {"decoded": "one two", "decoding": {"stop_shown": True}}),
        ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, {"undecoded": BLANKS}),
    ],
)
def test_the_servers_rules_follow_the_request(body, facts):
    assert decoded_facts(source(by_ids(1, 2, 0, known_stop=True), body)) == facts


@pytest.mark.parametrize(("server", "decoding"), [("vllm", {}), ("llama.cpp", {"decoding": {"held": 1}})])
def test_whether_a_stop_token_is_in_the_text_is_documented_by_vllm_only(server, decoding):
    found = decoded_facts(source(by_ids(1, 2, 3), server=server, stop_token_ids=(3,)))
    assert found == {"decoded": "one two," if decoding else "one two", **decoding}


def chunks(*pairs):
    return tuple(StreamChunk(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("made", "ahead"),
    [
        (chunks((3, 1), (7, 2), (7, 3)), None),
        # text may lag behind its tokens
        (chunks((0, 1), (1, 2), (7, 3)), None),
        (chunks((4, 1), (7, 2), (7, 3)), [0]),
        (chunks((3, 0), (7, 1), (7, 3)), [0, 1]),
    ],
)
@pytest.mark.parametrize("both", [True, False])
def test_each_chunk_of_a_stream_is_compared_with_the_ids_so_far(made, ahead, both):
    answer = by_ids(1, 2, 0, known_stop=True)
    streamed = dataclasses.replace(answer, chunks=made)
    found = source(answer, streamed=streamed) if both else source(streamed)
    assert decoded_facts(found).get("decoding", {}).get("ahead") == ahead


def by_names(text, *names, finish="stop", raw=None):
    pieces = tuple(Piece(name, math.nan, raw=raw and raw[i]) for i, name in enumerate(names))
    return Completion(text, finish, pieces=pieces)


@pytest.mark.parametrize(
    ("answer", "sampling", "decoded", "held"),
    [
        (by_names("one two", "one", " two"), {}, "one two", 0),
        (by_names("two one", "one", " two"), {}, "one two", 0),
        # special tokens are left out of the text, wherever they are
        (by_names("one two", "one", "<|pad|>", " two", "<|im_end|>"), {}, "one two", 0),
        (by_names("a<b>c", "a", "<b>", "c", "</s>"), {}, "a<b>c", 0),
        (by_names("one", "one", ","), {"stop": (",",)}, "one,", 0),
        (by_names("one", "one", ", "), {"stop_token_ids": (3,)}, "one, ", 2),
        (by_names("\u00e9", "\ufffd", "\ufffd", raw=(b"\xc3", b"\xa9")), {}, "\u00e9", 0),
        (by_names("", "\ufffd", finish="length", raw=(b"\xc3",)), {}, "\ufffd", 0),
    ],
)
def test_names_of_tokens_are_joined(answer, sampling, decoded, held):
    facts = decoded_facts(source(answer, codec=CharacterCodec(), **sampling))
    assert facts == {"decoded": decoded, "decoding": {**({"held": held} if held else {}), "joined": True}}


@pytest.mark.parametrize(
    "answer",
    [
        Completion("one", "stop"),
        by_names("one", "token_id:1"),
        by_names("one"),
        # half a character, and as its bytes those of the mark that stands for it
        by_names("\u00e9", "\ufffd", "\ufffd"),
        by_names("\u00e9", "\ufffd", "\ufffd", raw=("\ufffd".encode(),) * 2),
    ],
)
def test_an_answer_that_names_no_tokens_has_one_account(answer):
    assert decoded_facts(source(answer, codec=CharacterCodec())) == {"undecoded": NAMELESS}


def test_ids_without_their_tokenizer_are_no_account():
    assert decoded_facts(source(by_ids(1, 2), codec=CharacterCodec())) == {"undecoded": NAMELESS}


@pytest.mark.parametrize(
    ("part", "value"), [("reasoning", "hm"), ("refusal", "no"), ("tool_calls", (ToolCall("f", "{}"),))]
)
def test_answers_in_parts_are_told_apart(part, value):
    assert decoded_facts(source(by_ids(1, 2, **{part: value}))) == {"parts": [part]}
