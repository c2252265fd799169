"""The chat format: the template that travels with the tokenizer and `render` are the same."""

import json
import random

import pytest

from engine.train import chat
from engine.train.corpus import train_tokenizer
from engine.train.dialogues import GENERATORS, draw, tool_schema


@pytest.fixture(scope="module")
def tokenizer():
    rng = random.Random(1)
    return train_tokenizer([draw(rng).text() for _ in range(100)], 320)


@pytest.mark.parametrize("maker", [make for _, make in GENERATORS], ids=lambda make: make.__name__)
def test_the_template_gives_what_render_gives(tokenizer, maker):
    rng = random.Random(4)
    for _ in range(25):
        dialogue = maker(rng)
        messages, tools = list(dialogue.messages), list(dialogue.tools)
        for prompt in (False, True):
            theirs = tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt
            )
            assert theirs == chat.render(messages, tools, generation_prompt=prompt)
        assert dialogue.text() == chat.render(messages, tools)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "quotes \" and ' and <b> & \\ \n lines \u65e5\u672c \U0001f600"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"name": "f", "arguments": {"x": 'a"<>&\u00e9', "y": [1, None]}}],
            }
        ],
    ],
    ids=["text", "system", "call"],
)
def test_odd_characters_are_written_the_same_way(tokenizer, messages):
    tools = [
        tool_schema("get_weather"),
        {"type": "function", "function": {"name": "f", "description": "<a> & 'b' \u00e9"}},
    ]
    theirs = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert theirs == chat.render(messages, tools)


def test_calls_in_the_shape_of_openai_servers_are_understood(tokenizer):
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    ours = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    wrapped = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}]
    assert tokenizer.apply_chat_template(wrapped, tokenize=False) == chat.render(ours)


def test_a_tool_call_is_json_between_its_marks():
    text = chat.tool_call_text({"name": "f", "arguments": {"a": 1, "b": "\u00e9"}})
    body = text.removeprefix(chat.TOOL_OPEN).removesuffix(chat.TOOL_CLOSE)
    assert json.loads(body) == {"name": "f", "arguments": {"a": 1, "b": "\u00e9"}}


def test_tokens_turn_back_into_the_text(tokenizer):
    rng = random.Random(5)
    for _ in range(60):
        text = draw(rng).text()
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    for text in ("\u65e5\u672c \U0001f600 na\u00efve\t\n  x", "1234567890", "", " leading and trailing "):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_the_vocabulary_has_the_size_asked_for_and_the_ids_the_models_know(tokenizer):
    assert len(tokenizer) == 320
    assert tokenizer.convert_tokens_to_ids([chat.EOS, chat.BOS, chat.PAD]) == [0, 1, 2]
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (0, 1, 2)


@pytest.mark.parametrize("mark", [*chat.SPECIAL_TOKENS, *chat.MARKUP_TOKENS])
def test_marks_are_single_tokens(tokenizer, mark):
    ids = tokenizer(f"a{mark}b", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_tokens_to_ids(mark) in ids
    left = tokenizer.decode(ids, skip_special_tokens=True)
    assert left == (f"a{mark}b" if mark in chat.MARKUP_TOKENS else "ab")


def test_digits_are_never_merged(tokenizer):
    ids = tokenizer("2026 2026 2026", add_special_tokens=False)["input_ids"]
    digits = [tokenizer.decode([i]) for i in ids]
    assert all(sum(letter.isdigit() for letter in piece) <= 1 for piece in digits)


def test_saving_keeps_the_template(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    messages = [{"role": "user", "content": "hello"}]
    assert again.apply_chat_template(messages, tokenize=False) == chat.render(messages)
    assert (
        again("Please call", add_special_tokens=False)["input_ids"]
        == (tokenizer("Please call", add_special_tokens=False)["input_ids"])
    )
