"""Tool calls of endpoints: read whole and from streams, compared with the baseline's; broken readers are found."""

import json
from dataclasses import replace

import pytest

from audit.evidence.verdicts import Verdict
from audit.text.documents import packaged_file
from engine.backends.interface import Prompt
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.request import body_of
from engine.backends.openai.response import Collector, Completion, ToolCall, read
from engine.backends.openai.retry import RequestResult
from engine.backends.openai.settings import settings_of
from engine.backends.openai.tool_calls import calls_of, sent_offer, tool_facts
from engine.core.types import Protocol, Request, SamplingParams, ToolOffer
from engine.record.tool_calls import ParsedCall
from tests.http.asking import answers, arm
from tests.http.evidence import verdict
from tests.http.server import serving
from tests.support.tiers import fast_first

ROWS = [json.loads(line) for line in packaged_file("prompts/tool_calls.jsonl").read_text().splitlines()]
CALLING = [row for row in ROWS if row["id"].startswith("first-call")][:3]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASK = ({"role": "user", "content": "Look."},)
AT = {"url": "http://127.0.0.1:1/v1"}


def requests(engine, **sampling):
    """Requests that offer the rows' tools."""
    made = []
    for index, row in enumerate(CALLING):
        ids = engine.encode(Prompt(tuple(row["messages"]), tuple(row["tools"])))
        params = SamplingParams(**{"max_new_tokens": 64, **sampling})
        made.append(Request(f"r{index}", ids, params, index, ToolOffer(tuple(row["tools"]))))
    return made


def asked(server, way="whole", proposer="served", **settings):
    engine = arm(server, proposer=proposer, stream=way, rows=1, tries=1, **settings)
    return answers(engine, requests(engine))


@pytest.fixture(scope="module")
def plain(backend, decode):
    """The baseline's answers by way."""
    with serving(backend, decode, calls="sound") as server:
        return {way: asked(server, way, None) for way in ("whole", "both")}


@pytest.mark.medium
@pytest.mark.parametrize("way", fast_first(["both", "streamed", "whole"]))
def test_calls_are_the_baselines_whole_and_streamed(serve, plain, way):
    with serve(gamma=3, calls="sound") as server:
        found = asked(server, way)
    facts = [each.facts["tools"] for each in found]
    assert [len(each["calls"]) for each in facts] == [1, 1, 1]
    assert all(each["parser"] == "the server" for each in facts)
    assert all(each.facts["finish"] == "tool_calls" for each in found)
    assert all(("streamed" in each) == (way == "both") for each in facts)
    assert not any(each.facts["reconciliation"]["mismatches"] for each in found)
    theirs = plain["both" if way == "both" else "whole"]
    result = verdict("tool_call_equality", found, theirs, theirs)
    assert (result.verdict, result.n, result.details["calls"]) == (Verdict.CERTIFIED, 3, 3), result.summary


@pytest.mark.medium
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("cut", "real: call 1 is unreadable, not "),
        ("lost", "real: call 1 is no call, not "),
        ("nameless", "real: call 1 is unreadable, not "),
    ],
)
def test_a_stream_that_loses_a_part_is_found(serve, plain, broken, words):
    with serve(gamma=3, calls=broken) as server:
        found = asked(server, "streamed")
    result = verdict("tool_call_equality", found, plain["whole"], plain["whole"])
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 3.0)
    assert result.findings[0].message.startswith(words)


@pytest.mark.medium
def test_a_stream_unlike_the_whole_answer_is_found_unless_both_arms_have_it(serve, plain):
    with serve(gamma=3, calls="lost") as server:
        found = asked(server, "both")
    result = verdict("tool_call_equality", found, plain["both"], plain["both"])
    assert (result.verdict, result.details["misread"]) == (Verdict.FAULT, 3)
    assert result.findings[0].message.startswith("streamed, call 1 is no call, not ")
    both = verdict("tool_call_equality", found, found, found)
    assert (both.verdict, both.details["misread"], both.details["wrong_in_both"]) == (Verdict.CERTIFIED, 0, 3)


@pytest.mark.medium
def test_another_finish_reason_is_a_difference(serve, plain):
    with serve(gamma=3, calls="stop") as server:
        result = verdict("tool_call_equality", asked(server), plain["whole"], plain["whole"])
    assert result.verdict is Verdict.FAULT
    assert "it ended by stop, not by tool_calls" in result.findings[0].message


@pytest.mark.medium
def test_parts_without_an_index_are_no_answer(serve):
    with serve(gamma=3, calls="unnumbered") as server:
        errors = [each.facts["error"] for each in asked(server, "streamed")]
    assert {(each["kind"], each["message"]) for each in errors} == {("malformed", "a part of a tool call has no index")}


@pytest.mark.slow
def test_sampled_arms_are_compared_in_pairs(serve):
    with serve(calls="sound") as server:
        engine, theirs = arm(server, rule=Protocol.CHAIN, proposer="served"), arm(server, rule=Protocol.CHAIN)
        found, baseline = (answers(each, requests(each, temperature=1.0)) for each in (engine, theirs))
    result = verdict("tool_call_equality", found, baseline)
    assert result.p_value is not None
    assert set(result.details) >= {"worse", "better"}


# parts of answers


def collected(*deltas):
    collector = Collector()
    for delta in deltas:
        collector.add({"choices": [{"index": 0, "delta": delta}]})
    collector.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return collector.answer()


def part(index, arguments=None, **more):
    function = {key: value for key, value in {"arguments": arguments, **more}.items() if value is not None}
    return {"index": index, "function": function}


def test_deltas_are_assembled_by_their_index():
    found = collected(
        {"tool_calls": [part(0, '{"a"', name="look"), part(1, "", name="gaze")]},
        {"tool_calls": [part(1, '{"b": ')]},
        {"tool_calls": [part(0, ": 1}"), part(1, "2}")]},
        {"content": None, "tool_calls": None},
    )
    assert found.tool_calls == (ToolCall("look", '{"a": 1}'), ToolCall("gaze", '{"b": 2}'))
    calls = [{"function": {"name": each.name, "arguments": each.arguments}} for each in found.tool_calls]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    whole = read({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert (whole.tool_calls, whole.text) == (found.tool_calls, found.text)


@pytest.mark.parametrize(
    ("delta", "words"),
    [
        ({"tool_calls": [{"function": {"name": "look"}}]}, "a part of a tool call has no index"),
        ({"tool_calls": [{"index": None, "function": {"name": "look"}}]}, "a part of a tool call has no index"),
        ({"tool_calls": [part("0", name="look")]}, "the index of a tool call is no number"),
        ({"tool_calls": [part(-1, name="look")]}, "the index of a tool call is no number"),
        ({"tool_calls": [part(0, {"a": 1}, name="look")]}, "arguments is no text"),
        ({"tool_calls": [part(0, name=3)]}, "name is no text"),
        ({"tool_calls": ["look"]}, "the tool call is no JSON object"),
        ({"tool_calls": [{"index": 0, "function": "look"}]}, "function is no JSON object"),
        ({"tool_calls": {"index": 0}}, "tool_calls is no list"),
    ],
)
def test_a_malformed_part_is_no_answer(delta, words):
    with pytest.raises(AttemptError, match=words):
        collected(delta)


@pytest.mark.parametrize(
    ("calls", "readable", "problem"),
    [
        ((ToolCall("look", "{}"),), (ParsedCall("look", {}),), None),
        ((ToolCall("look", '{"a": '),), (), "the arguments of look: Expecting value"),
        ((ToolCall("look", '{"a": NaN}'),), (), "the arguments of look: NaN is not JSON"),
        ((ToolCall("look", "[" * 100_000),), (), "the arguments of look: "),
        ((ToolCall("", "{}"), ToolCall("look", "{}")), (ParsedCall("look", {}),), "call 1 has no name"),
        ((), (), None),
    ],
)
def test_calls_that_cannot_be_read_are_a_problem_of_the_answer(calls, readable, problem):
    found = calls_of(Completion("", "tool_calls", tool_calls=calls))
    assert found.calls == readable
    assert (found.problem or "").startswith(problem or "")
    assert (found.problem is None) == (problem is None)


# requests


def body(prompt, **engine):
    return body_of(settings_of({**AT, **engine}), "m", prompt, (1,), Request("r", (1,), SamplingParams()), "salt", {})


@pytest.mark.parametrize(
    ("own", "arms", "sent", "recorded"),
    [
        ("auto", None, None, "auto"),
        ("auto", "required", "required", "required"),
        ("none", "required", "none", "none"),
        ("required", "auto", "required", "required"),
        ({"name": "look"}, None, {"type": "function", "function": {"name": "look"}}, {"name": "look"}),
        ("auto", {"type": "function", "function": {"name": "look"}}, ..., {"name": "look"}),
    ],
)
def test_the_record_has_the_choice_that_was_sent(own, arms, sent, recorded):
    engine = {} if arms is None else {"tool_choice": arms}
    found = body(Prompt(ASK, (LOOK,), tool_choice=own), **engine)
    assert found.get("tool_choice") == (arms if sent is ... else sent)
    assert sent_offer(settings_of({**AT, **engine}), ToolOffer((LOOK,), own)).choice == recorded


def test_calls_and_results_in_prompts_are_sent_in_openais_form():
    told = (
        {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {"at": 1}}]},
        {"role": "tool", "content": "A tree."},
        {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "look"}}]},
        {"role": "tool", "content": "A bush.", "tool_call_id": "x"},
    )
    sent = body(Prompt(told, (LOOK,)))["messages"]
    function = {"name": "look", "arguments": '{"at": 1}'}
    assert sent[0]["tool_calls"] == [{"id": "call_0", "type": "function", "function": function}]
    assert sent[1]["tool_call_id"] == "call_0"
    assert sent[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert (sent[2]["tool_calls"][0]["id"], sent[3]["tool_call_id"]) == ("x", "x")


@pytest.mark.parametrize("parallel", [None, True, False])
def test_parallel_calls_are_allowed_or_not(parallel):
    engine = {} if parallel is None else {"parallel_tool_calls": parallel}
    assert body(Prompt(ASK, (LOOK,)), **engine).get("parallel_tool_calls") is parallel
    assert "parallel_tool_calls" not in body(Prompt(ASK), **engine)
    twice = Completion("", "tool_calls", tool_calls=(ToolCall("look", "{}"),) * 2)
    request = Request("r", (1,), SamplingParams(), tools=ToolOffer((LOOK,)))
    facts = tool_facts(settings_of({**AT, **engine}), request, RequestResult(1, twice), twice)
    assert facts["tools"].get("parallel", True) is (parallel is not False)


def test_streams_of_other_tokens_or_of_cut_answers_are_no_second_reading():
    request = Request("r", (1,), SamplingParams(), tools=ToolOffer((LOOK,)))
    whole = Completion("", "tool_calls", tool_calls=(ToolCall("look", "{}"),), token_ids=(1, 2))

    def recorded(answer, streamed):
        result = RequestResult(1, answer, None, streamed)
        return "streamed" in tool_facts(settings_of(AT), request, result, answer)["tools"]

    assert recorded(whole, whole)
    assert not recorded(whole, None)
    assert not recorded(whole, replace(whole, token_ids=(1, 3)))
    assert not recorded(replace(whole, token_ids=None), replace(whole, token_ids=None))
    assert not recorded(replace(whole, finish="length"), whole)
