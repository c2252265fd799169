"""Which tokens an answer has, and whose log-probabilities are theirs."""

import math

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.interface import Prompt
from engine.backends.local_target import LocalTarget
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.response import Completion
from engine.backends.openai.tokens import CODE_POINTS, CharacterCodec, LocalCodec, TokenOrigin, finish_of, tokens_of
from engine.core.types import FinishReason, Request, SamplingParams

LENGTH = FinishReason.LENGTH


@pytest.fixture(scope="module")
def local():
    return LocalCodec(LocalTarget(ModelSource("bundled:target")))


def pieces(*texts, **more):
    return tuple(Piece(text, -0.5 - i, 1.0, **more) for i, text in enumerate(texts))


def split(local, text):
    return [local.piece(token) for token in local.ids(text)]


def test_the_servers_ids_come_first():
    answer = Completion("ab", "stop", token_ids=(5, 6), pieces=pieces("a", "b"))
    read = tokens_of(answer, CharacterCodec(), LENGTH)
    assert (read.tokens, read.origin, read.logprob, read.lead) == ((5, 6), TokenOrigin.SERVER, (-0.5, -1.5), (1.0, 1.0))


@pytest.mark.parametrize("scores", [None, (), pieces("a"), (Piece("a", math.nan), Piece("b", -1.0))])
def test_without_a_number_for_every_token_there_is_none_and_the_reason_is_said(scores):
    read = tokens_of(Completion("ab", "stop", token_ids=(5, 6), pieces=scores), CharacterCodec(), LENGTH)
    assert read.tokens == (5, 6)
    assert read.logprob == ()
    assert read.less


def test_one_unknown_lead_leaves_none():
    answer = Completion("ab", "stop", token_ids=(5, 6), pieces=(Piece("a", -1.0, 2.0), Piece("b", -1.0)))
    read = tokens_of(answer, CharacterCodec(), LENGTH)
    assert (read.logprob, read.lead) == ((-1.0, -1.0), ())


def test_ids_beside_log_probabilities_are_the_servers_too():
    answer = Completion("ab", "stop", pieces=(Piece("a", -1.0, 1.0, 5), Piece("b", -2.0, 1.0, 6)))
    assert tokens_of(answer, CharacterCodec(), LENGTH).origin is TokenOrigin.LOGPROBS


def test_text_is_tokenized_and_scored_where_the_pieces_are_its_tokens(local):
    text = '{"name": "Oslo"}'
    read = tokens_of(Completion(text, "length", pieces=pieces(*split(local, text))), local, LENGTH)
    assert read.tokens == local.ids(text)
    assert len(read.logprob) == len(read.tokens) > 3
    assert read.origin is TokenOrigin.TOKENIZER


def test_other_tokens_of_the_same_text_give_no_log_probability(local):
    text = '{"name": "Oslo"}'
    read = tokens_of(Completion(text, "length", pieces=pieces(*text)), local, LENGTH)
    assert read.tokens == local.ids(text)
    assert read.logprob == ()
    assert "other tokens" in read.less or "log-probabilities for" in read.less


def test_a_piece_for_the_end_is_left_out_at_an_end_only(local):
    text = "Once upon"
    answer = Completion(text, "stop", pieces=pieces(*split(local, text), "<|end|>"))
    assert len(tokens_of(answer, local, FinishReason.EOS).logprob) == len(local.ids(text))
    assert tokens_of(answer, local, LENGTH).logprob == ()


def test_characters_are_no_tokens_and_have_no_numbers():
    text = "a\U0001f600\u0301"
    read = tokens_of(Completion(text, "stop", pieces=pieces("a", "b")), CharacterCodec(), LENGTH)
    assert read.tokens == tuple(map(ord, text))
    assert read.origin is TokenOrigin.CHARACTERS
    assert read.logprob == ()
    assert "token ids" in read.less
    assert max(read.tokens) < CODE_POINTS


def test_prompts_without_a_tokenizer_are_told_apart():
    codec = CharacterCodec()
    one = Prompt(({"role": "user", "content": "a"},))
    assert codec.encode(one) != codec.encode(Prompt(one.messages, ({"name": "t"},)))
    assert codec.encode(one) == codec.encode(Prompt(({"content": "a", "role": "user"},)))
    assert codec.encode(Prompt(text="ab")) == (97, 98)


def request(**sampling):
    return Request("r", (1,), SamplingParams(**sampling))


@pytest.mark.parametrize(
    ("answer", "sampling", "reason"),
    [
        (Completion("", "length"), {}, FinishReason.LENGTH),
        (Completion("", "stop"), {}, FinishReason.EOS),
        (Completion("", "tool_calls"), {}, FinishReason.EOS),
        (Completion("", "stop"), {"stop": ("x",)}, FinishReason.STOP),
        (Completion("", "stop", known_stop=True), {"stop": ("x",)}, FinishReason.EOS),
        (Completion("", "stop", known_stop=True, stop_reason="x"), {"stop": ("x",)}, FinishReason.STOP),
        (Completion("", "stop", known_stop=True, stop_reason=7), {"stop_token_ids": (7,)}, FinishReason.STOP),
        (Completion("", "stop", known_stop=True, stop_reason=0), {}, FinishReason.EOS),
        (Completion("", "stop", token_ids=(9, 0)), {"stop": ("x",)}, FinishReason.EOS),
        (Completion("", "content_filter"), {}, None),
        (Completion("", "abort"), {}, None),
    ],
)
def test_ends_in_our_words(answer, sampling, reason, local):
    assert local.eos_ids == (0,)
    assert finish_of(answer, request(**sampling), local) == reason
