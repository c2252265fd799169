"""The stream of one response: what leaves after which step, where filters end it, and what the record says."""

import random

import numpy as np
import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.core.types import Emitted, FinishReason, Proposal, Protocol, Request, Role, SamplingParams, StepOutcome
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.sampling.stopping import StopRule
from engine.stream.interface import StreamSpec, filter_spec
from engine.stream.redaction import REDACTED
from engine.stream.text_stream import StreamRules, TextStream
from tests.engine.faults.arms import COLUMNS, same
from tests.engine.stream.texts import patterns

TEXT = "Grüße aus Zürich, 東京 🙂 the end of the story"
DRAFT = {"proposer": "draft_model", "gamma": 4, "draft": "draft"}
RULES = {
    "greedy": ({"protocol": Protocol.GREEDY, **DRAFT}, 0.0),
    "chain": ({"protocol": Protocol.CHAIN, **DRAFT}, 1.0),
    "gumbel": ({"protocol": Protocol.GUMBEL, **DRAFT}, 1.0),
    "tree": ({"protocol": Protocol.TREE, "proposer": "specinfer", "gamma": 6, "draft": "draft"}, 1.0),
    "copied": ({"protocol": Protocol.CHAIN, "proposer": "ngram", "gamma": 3}, 1.0),
}
WORDS = {"categories": {"x": ["an", "th"], "y": ["e ", "o", "qh"]}, "whole_words": False}
ENDS = {"categories": {"z": ["qb", "zz", "tdn"]}, "whole_words": False}
FILTERS = StreamSpec(
    (
        filter_spec("patterns", "redact", "output", WORDS),
        filter_spec("patterns", "stop", "output", ENDS),
        filter_spec("patterns", "refuse", "prompt", {"categories": {"asked": ["please"]}}),
    )
)


def spelled(tokens):
    """Tokens are bytes."""
    return bytes(tokens).decode("utf-8", "replace")


def stream_of_bytes(text, seed, stop=(), rules=(), **params):
    """The stream of a text whose tokens are its bytes, committed in random steps, and why it ended."""
    sampling = SamplingParams(stop=stop, max_new_tokens=len(text.encode()), **params)
    ends = StopRule(sampling, (), spelled)
    stream, tokens, numbers, reason = TextStream(StreamRules(tuple(rules)), ends), [], random.Random(seed), None
    left = list(text.encode())
    while reason is None:
        size = numbers.randint(1, 5)
        emitted = tuple(Emitted(token, Role.PLAIN, 0, 1.0) for token in left[:size])
        cut = stream.commit(tokens, Proposal(), ends.cut(tokens, StepOutcome(emitted)))
        tokens += [each.token for each in cut.verdict.emitted]
        reason, left = cut.reason, left[size:]
    return stream, tokens, reason


@pytest.mark.parametrize("stop", [(), ("the end",), ("東京 🙂",), ("th", "end")])
def test_the_chunks_are_the_text_and_no_character_is_split(stop):
    for seed in range(20):
        stream, tokens, reason = stream_of_bytes(TEXT, seed, stop)
        assert stream.text == StopRule(SamplingParams(stop=stop), (), spelled).text(tokens, reason)
        assert all(each.text and "\ufffd" not in each.text for each in stream.chunks)
        assert reason is (FinishReason.STOP if stop else FinishReason.LENGTH)
        counts = [each.tokens for each in stream.chunks]
        assert counts == sorted(set(counts))


def test_a_response_that_ends_inside_a_character_keeps_what_plain_decoding_shows():
    stream, _, reason = stream_of_bytes("a東", 1, ignore_eos=True)
    assert (stream.text, reason) == ("a東", FinishReason.LENGTH)
    cut = TextStream(StreamRules(), StopRule(SamplingParams(max_new_tokens=2), (), spelled))
    cut.read([97, 0xE6], FinishReason.LENGTH)
    cut.release(2)
    assert cut.text == "a\ufffd"


def test_decisions_and_ends_do_not_depend_on_steps():
    words, ends = patterns({"city": ["Zürich", "東京"]}), patterns({"end": ["of"]}, action="stop")
    found = set()
    for seed in range(25):
        stream, tokens, reason = stream_of_bytes(TEXT, seed, rules=(words, ends))
        assert reason is FinishReason.FILTER
        found.add((stream.text, len(tokens), tuple(stream.decisions)))
    ((text, count, decisions),) = found
    assert text == f"Grüße aus {REDACTED}, {REDACTED} 🙂 the end "
    assert [each.category for each in decisions] == ["city", "city", "end"]
    # the letter after it shows that the word is whole
    assert spelled(TEXT.encode()[:count]).endswith("of ")
    assert {each.token for each in decisions} < set(range(count))


def test_the_earliest_end_counts_and_what_lies_behind_it_is_not_on_record():
    first = patterns({"a": ["wxy"]}, action="stop", whole_words=False)
    second = patterns({"b": ["uvwxy"]}, action="refuse", whole_words=False)
    late = patterns({"c": ["y"]}, whole_words=False)
    stream, _, _ = stream_of_bytes("stuvwxyz", 0, rules=(first, second, late))
    assert stream.text == "st"
    assert [each.category for each in stream.decisions] == ["b"]


def test_a_filter_that_decides_when_the_response_is_over_ends_it_after_all():
    stream, tokens, reason = stream_of_bytes("a gun", 0, rules=(patterns({"x": ["gun"]}, action="stop"),))
    assert (stream.text, reason, len(tokens)) == ("a ", FinishReason.FILTER, 5)


@pytest.fixture(scope="module")
def backend():
    return open_backend("scripted", {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})


def requests(temperature):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=32, stop=("kk", "po"), seed=5)
    return [Request(f"r{i}", (i + 1, 2, 3), sampling, stream_of(f"r{i}")) for i in range(8)]


def generate(backend, rule, stream, plain=False):
    settings, temperature = RULES[rule]
    plan = EngineSpec(settings["protocol"]) if plain else EngineSpec(**settings, rows=4)
    engine = backend.arm(EngineSpec(**{name: getattr(plan, name) for name in plan.__slots__} | {"stream": stream}))
    return {each.request.id: each for each in engine.generate(requests(temperature))}


def facts(generation):
    return decode(generation.trace).header.facts


@pytest.mark.medium
@pytest.mark.parametrize("rule", RULES)
def test_a_stream_changes_nothing_but_the_facts(backend, rule):
    alone, streamed = (generate(backend, rule, stream) for stream in (None, StreamSpec()))
    for name, each in alone.items():
        other = streamed[name]
        assert (each.tokens, each.text, each.finish_reason) == (other.tokens, other.text, other.finish_reason)
        said = facts(other)
        assert "stream" not in facts(each)
        assert "".join(text for _, text in said["stream"]["chunks"]) == each.text
        assert {key: value for key, value in said.items() if key not in ("stream", "ends")} == facts(each)
        traces = decode(each.trace), decode(other.trace)
        assert all(np.array_equal(*(getattr(one, name) for one in traces), equal_nan=True) for name in COLUMNS)


@pytest.mark.medium
@pytest.mark.parametrize("rule", ["greedy", "gumbel"])
def test_filters_decide_as_over_plain_decoding(backend, rule):
    ours, theirs = (generate(backend, rule, FILTERS, plain) for plain in (False, True))
    decided = 0
    for name, each in ours.items():
        other = theirs[name]
        assert (each.tokens, each.text, each.finish_reason) == (other.tokens, other.text, other.finish_reason)
        assert facts(each)["stream"]["decisions"] == facts(other)["stream"]["decisions"]
        decided += len(facts(each)["stream"]["decisions"])
    assert decided


@pytest.mark.medium
def test_a_refused_prompt_gets_no_tokens_and_the_others_are_not_touched(backend):
    engine = backend.arm(EngineSpec(Protocol.GUMBEL, **DRAFT, stream=FILTERS))
    asked = Request("asked", engine.encode(Prompt(text="tell me please")), SamplingParams(temperature=1.0), 3)
    others = requests(1.0)
    with_it = {each.request.id: each for each in engine.generate([others[0], asked, *others[1:]])}
    without = {each.request.id: each for each in engine.generate(others)}
    refused = with_it.pop("asked")
    assert (refused.tokens, refused.text, refused.finish_reason) == ((), "", FinishReason.FILTER)
    (decision,) = facts(refused)["stream"]["decisions"]
    assert (decision["category"], decision["token"], decision["action"]) == ("asked", -1, "refuse")
    assert all(same(decode(each.trace), decode(without[name].trace)) for name, each in with_it.items())


def test_the_effective_configuration_states_filters_and_rules(backend):
    engine = backend.arm(EngineSpec(Protocol.GUMBEL, stream=FILTERS))
    listed = engine.effective_config().facts["stream"]["filters"]
    assert [each["component"] for each in listed] == ["patterns"] * 3
    assert listed[0]["rules"] == WORDS
    assert "stream" not in backend.arm(EngineSpec(Protocol.GUMBEL)).effective_config().keys
