"""Calls in a text: read at once and piece by piece, they are the same."""

import json
import random
from pathlib import Path

import pytest

from engine.backends.native.scripted import TEMPLATE, TOOLS
from engine.core.types import Request, SamplingParams, ToolOffer
from engine.decode.call_reader import CallReader
from engine.record.facts import facts_fault
from engine.record.tool_calls import CallParser, ParsedCall, offer_to_json, parse_calls
from engine.train import chat
from engine.train.dialogues import TOOLS as FAMILY
from engine.train.dialogues import tool_schema

OFFER = ToolOffer(tuple(tool_schema(name) for name in sorted(FAMILY)))
LETTERS = ToolOffer(TOOLS)
STOCK, WEATHER = (
    ParsedCall("get_stock", {"symbol": "ABC"}),
    ParsedCall("get_weather", {"city": "Oslo", "unit": "celsius"}),
)


def text_of(*calls):
    return "".join(chat.tool_call_text({"name": call.name, "arguments": call.arguments}) for call in calls)


TEXTS = (
    text_of(STOCK),
    f"First. {text_of(STOCK, WEATHER)} Last.",
    "no call at all < tool_call > {",
    text_of(ParsedCall("say", {"text": 'a "quoted" \n </tool > \u00e9\u4e16', "n": 1.5, "deep": [{"x": None}, True]})),
    text_of(STOCK)[:-20],
    text_of(STOCK).removesuffix("</tool_call>"),
    text_of(STOCK) + "<tool_call>\n{broken}\n</tool_call>" + text_of(WEATHER),
    "<tool_call>\n[1, 2]\n</tool_call>",
    "",
)


def in_pieces(text, numbers, template=chat.RESPONSE_TEMPLATE, offer=OFFER):
    parser, at = CallParser(template, offer), 0
    while at < len(text):
        size = numbers.randint(1, 7)
        parser.feed(text[at : at + size])
        at += size
    return parser.finish()


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_give_the_calls_of_the_whole(text):
    whole, numbers = parse_calls(text, chat.RESPONSE_TEMPLATE, OFFER), random.Random(3)
    for _ in range(20):
        pieces = in_pieces(text, numbers)
        assert (pieces.problem is None) == (whole.problem is None)
        assert pieces == whole if whole.problem is None else pieces.calls[: len(whole.calls)] == whole.calls


@pytest.mark.parametrize("text", TEXTS)
def test_the_facts_of_every_text_can_be_written(text):
    """A text may open a call and hold none: it has a place and no name."""
    request = Request("r", (1,), SamplingParams(), tools=OFFER)
    reader = CallReader(request, chat.RESPONSE_TEMPLATE, lambda tokens: "".join(map(chr, tokens)))
    reader.step([ord(letter) for letter in text], len(text))
    assert facts_fault({"tools": {**offer_to_json(OFFER), **reader.facts(text, len(text))}}) is None


def test_what_is_written_is_read():
    assert parse_calls(TEXTS[1], chat.RESPONSE_TEMPLATE, OFFER).calls == (STOCK, WEATHER)
    (said,) = parse_calls(TEXTS[3], chat.RESPONSE_TEMPLATE, OFFER).calls
    assert said.arguments == {"text": 'a "quoted" \n </tool > \u00e9\u4e16', "n": 1.5, "deep": [{"x": None}, True]}
    assert parse_calls("", chat.RESPONSE_TEMPLATE, OFFER).calls == ()


def test_a_text_that_cannot_be_read_keeps_the_calls_before_it():
    parsed = in_pieces(TEXTS[6], random.Random(1))
    assert parsed.calls == (STOCK,)
    assert parsed.problem is not None
    assert "\n" not in parsed.problem
    for broken in (TEXTS[4], TEXTS[7]):
        assert parse_calls(broken, chat.RESPONSE_TEMPLATE, OFFER).problem is not None


def test_values_without_types_are_cast_by_the_schema_and_json_is_not():
    number = ({"name": "letters", "parameters": {"type": "object", "properties": {"text": {"type": "integer"}}}},)
    (call,) = parse_calls("b" + "a12.", TEMPLATE, ToolOffer(number)).calls
    assert call.arguments == {"text": 12}
    (kept,) = parse_calls(text_of(ParsedCall("convert", {"amount": "7"})), chat.RESPONSE_TEMPLATE, OFFER).calls
    assert kept.arguments == {"amount": "7"}


def test_many_calls_of_a_scripted_text():
    text = "xyz anchor, kid. over_ tail"
    calls = parse_calls(text, TEMPLATE, LETTERS).calls
    assert [call.arguments["text"] for call in calls] == ["nchor", "d", "ver", "il"]
    assert in_pieces(text, random.Random(2), TEMPLATE, LETTERS).calls == calls


@pytest.mark.parametrize("name", ["target", "medium", "early_exit"])
def test_the_template_beside_a_bundled_tokenizer_is_the_family_s(name):
    path = Path(chat.__file__).parents[1] / "bundled" / name / "response_template.json"
    assert json.loads(path.read_text(encoding="utf-8")) == chat.RESPONSE_TEMPLATE
