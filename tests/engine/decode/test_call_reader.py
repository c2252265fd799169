"""Calls read while decoding: from committed tokens only, and recorded only where tools are offered."""

from dataclasses import replace

import pytest

from engine import faults
from engine.backends.interface import Prompt
from engine.backends.native import ALPHABET
from engine.backends.native.scripted import TEMPLATE, TOOLS
from engine.backends.tokenizer import tokens_by
from engine.core.types import Request, SamplingParams, ToolOffer
from engine.decode.call_reader import CHANGED, NO_TEMPLATE, CallReader, is_read, offer_facts
from engine.record.tool_calls import parse_calls
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.engine.faults.arms import arm

OFFER = ToolOffer(TOOLS)
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=64, seed=5)
SCENARIO = faults.load("parser_fed_per_chunk").scenario


def spell(tokens):
    return "".join(ALPHABET[token] for token in tokens)


def tokens_of(text):
    return [ALPHABET.index(letter) for letter in text]


def reader_of(sampling=PARAMS, decoding=spell):
    return CallReader(Request("r", (1,), sampling, tools=OFFER), TEMPLATE, decoding)


def read(text, sizes, reader):
    """Feed a text in steps of these sizes."""
    tokens, at = tokens_of(text), 0
    for size in sizes:
        at += size
        reader.step(tokens[:at], min(size, at))
    assert at == len(tokens)
    return reader.facts(text, len(tokens))


def generated(tools=OFFER, fault=None, sampling=PARAMS):
    requests = [Request(f"r{i}", (i, 3, 5), sampling, stream_of(f"r{i}"), tools) for i in range(4)]
    return list(arm(SCENARIO, fault).generate(requests))


def facts_of(generation):
    return decode(generation.trace).header.facts


@pytest.mark.parametrize("sizes", [(1,) * 15, (4, 4, 4, 3), (15,), (3, 1, 1, 6, 4)])
def test_steps_of_any_size_give_the_same_fact(sizes):
    facts = read("bcd anchor, kid", sizes, reader_of())
    assert [call["arguments"] for call in facts["calls"]] == [{"text": "nchor"}, {"text": "d"}]
    assert facts["spans"] == [[4, 11], [13, 15]]
    assert facts["parser"].startswith("transformers ")


def test_what_may_become_a_stop_string_is_held_back():
    reader = reader_of(replace(PARAMS, stop=("chor",)))
    tokens = tokens_of("b anchor,")
    for end in range(1, 9):
        reader.step(tokens[:end], 1)
    found = reader.finish("b an", 9)
    assert [call.arguments for call in found.calls] == [{"text": "n"}]


def test_an_incomplete_character_is_held_back():
    pieces = ["a", "x", "\ufffd", "."]

    def halves(tokens):
        text = "".join(pieces[token] for token in tokens)
        return text.replace("\ufffd.", "\u00e9.")

    reader = reader_of(decoding=halves)
    for end in range(1, 5):
        reader.step(list(range(end)), 1)
    assert [call.arguments for call in reader.finish("ax\u00e9.", 4).calls] == [{"text": "x\u00e9"}]


def test_a_text_that_went_back_is_a_problem_and_no_call():
    reader = reader_of()
    reader.step(tokens_of("b anc"), 5)
    assert reader.finish("other", 5).problem == CHANGED


@pytest.mark.medium
def test_the_loop_records_what_its_text_holds():
    for generation in generated():
        fact = facts_of(generation)["tools"]
        parsed = parse_calls(generation.text, TEMPLATE, OFFER)
        assert [call["arguments"] for call in fact["calls"]] == [call.arguments for call in parsed.calls] != []
        assert len(fact["spans"]) == len(fact["calls"])
        assert (fact["choice"], fact["offered"]) == ("auto", [dict(tool) for tool in TOOLS])


@pytest.mark.medium
def test_tools_change_nothing_else_in_a_record():
    for plain, offered in zip(generated(None), generated(), strict=True):
        ours, theirs = facts_of(plain), facts_of(offered)
        assert "tools" not in ours
        assert ours == {key: value for key, value in theirs.items() if key != "tools"}
        assert plain.tokens == offered.tokens


@pytest.mark.medium
def test_under_none_nothing_looks_for_calls():
    for generation in generated(replace(OFFER, choice="none")):
        assert facts_of(generation)["tools"] == {
            "offered": [dict(tool) for tool in TOOLS],
            "choice": "none",
            "calls": [],
        }


def test_without_a_template_the_record_says_why_there_are_no_calls():
    assert offer_facts(OFFER, None)["tools"]["unread"] == NO_TEMPLATE
    assert not is_read(OFFER, None)
    assert offer_facts(None, TEMPLATE) == {}


class Templated:
    """A tokenizer whose template shows what it gets."""

    chat_template = "given"

    def apply_chat_template(self, _messages, **given):
        self.given = given
        return ""

    def __call__(self, _text, **_options):
        return {"input_ids": [1]}


@pytest.mark.parametrize(("choice", "seen"), [("auto", {}), ("none", {"tool_choice": "none"})])
def test_the_template_sees_the_tools_and_a_choice_that_is_not_auto(choice, seen):
    tokenizer = Templated()
    tokens_by(tokenizer, "here").encode(Prompt(({"role": "user", "content": "x"},), TOOLS, tool_choice=choice))
    shown = {key: value for key, value in tokenizer.given.items() if key not in ("tokenize", "add_generation_prompt")}
    assert shown == {"tools": list(TOOLS), **seen}
