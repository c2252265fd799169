"""Calls compared by value, and judged against what the request offered."""

from dataclasses import replace

import pytest

from audit.evidence.records import RequestRecord
from audit.evidence.tool_calls import AnsweredOffer, answered, canonical, defect, difference, reread
from engine import faults
from engine.core.types import FinishReason, ToolOffer
from engine.record.tool_calls import ParsedCall, ParsedCalls
from engine.record.trace import decode
from tests.engine.faults.arms import generate

STOCK = {
    "type": "function",
    "function": {
        "name": "get_stock",
        "parameters": {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]},
    },
}
OFFER = ToolOffer((STOCK, {"name": "flat"}))
GOOD = ParsedCall("get_stock", {"limit": 3})


@pytest.fixture(scope="module")
def request_record():
    generation = generate(faults.load("parser_fed_per_chunk").scenario, count=1)["r0"]
    trace = decode(generation.trace)
    return RequestRecord("r", "c", 0, "d", trace, generation.tokens, generation.text, FinishReason.EOS, 1, intact=True)


def judged(record, *calls, choice="auto", problem=None, finish="", offer=OFFER):
    return defect(record, AnsweredOffer(replace(offer, choice=choice), ParsedCalls(calls, problem), None, finish))


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ({"a": 1, "b": [1, {"y": 2, "x": 3}]}, {"b": [1.0, {"x": 3, "y": 2}], "a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": None}, {}, False),
        (10**22, 1e22, True),
        (0.1, 0.10000000000000001, True),
        (0, -0.0, True),
    ],
)
def test_arguments_are_equal_by_value(first, second, equal):
    assert (canonical(first) == canonical(second)) is equal


def test_the_first_difference_of_two_answers_is_named():
    other = ParsedCall("flat", {})
    assert difference(ParsedCalls((GOOD, other)), ParsedCalls((GOOD, other))) is None
    assert difference(ParsedCalls((GOOD, other)), ParsedCalls((other, GOOD))) == (
        'call 1 is get_stock({"limit":3}), not flat({})'
    )
    assert difference(ParsedCalls((GOOD,)), ParsedCalls((GOOD, other))) == "call 2 is no call, not flat({})"
    assert difference(ParsedCalls((GOOD,), "cut"), ParsedCalls((GOOD,))) == "call 2 is unreadable, not no call"


def test_valid_answers(request_record):
    assert judged(request_record, GOOD) is None
    assert judged(request_record, GOOD, ParsedCall("flat", {"any": 1})) is None
    assert judged(request_record) is None
    assert judged(request_record, choice="none") is None
    assert judged(request_record, GOOD, choice="required", finish="tool_calls") is None
    assert judged(request_record, GOOD, choice={"name": "get_stock"}, finish="stop") is None


@pytest.mark.parametrize(
    ("calls", "more", "words"),
    [
        ((ParsedCall("get_weather", {}),), {}, "which the request does not offer"),
        ((ParsedCall("get_stock", {"limit": "3"}),), {}, "do not fit its schema: '3' is not of type 'integer'"),
        ((ParsedCall("get_stock", {}),), {}, "'limit' is a required property"),
        ((ParsedCall("get_stock", [3]),), {}, "are no JSON object"),
        ((GOOD,), {"problem": "Unterminated"}, "a call cannot be read: Unterminated"),
        ((GOOD,), {"choice": "none"}, "although tool_choice is none"),
        ((), {"choice": "required"}, "it calls no tool"),
        ((), {"choice": {"name": "flat"}}, "it does not call flat"),
        ((GOOD,), {"choice": {"name": "flat"}}, "it calls another tool than flat"),
        ((), {"finish": "tool_calls"}, "holds no call"),
        ((GOOD,), {"finish": "stop"}, "ended with stop, not with tool_calls"),
    ],
)
def test_defects(request_record, calls, more, words):
    assert words in judged(request_record, *calls, **more)


def test_an_answer_that_reached_its_length_is_not_valid(request_record):
    assert judged(replace(request_record, finish_reason=FinishReason.LENGTH), GOOD) == "the answer is cut by its length"


def test_a_tool_whose_schema_is_none_is_named(request_record):
    broken = ToolOffer(({"name": "odd", "parameters": {"type": "nonesuch"}},))
    assert "the schema of odd is no JSON Schema" in judged(request_record, ParsedCall("odd", {}), offer=broken)


def test_a_record_tells_its_offer_and_its_text_gives_the_same_calls(request_record):
    answer = answered(request_record)
    assert answer.parsed.calls
    assert reread(request_record, answer) == answer.parsed
    assert reread(request_record, replace(answer, template=None)) is None
    header = replace(request_record.trace.header, facts={})
    assert answered(replace(request_record, trace=replace(request_record.trace, header=header))) is None
