"""Where a generation ends, token by token, and what its text is."""

import math
from dataclasses import replace

import pytest

from engine.core.types import DraftRule, Emitted, Examined, FinishReason, Protocol, Role, SamplingParams, StepOutcome
from engine.record.trace import decode
from engine.sampling.stopping import StopRule, TruncatedOutcome, trim
from engine.verify import load
from tests.engine.build import Setup, generate, make_loop, requests, spell
from tests.support.tiers import fast_first, slow_unless

NAN = float("nan")
PIECES = {0: "a", 1: "b", 2: "c", 3: "ab", 4: "bc", 5: "", 6: "xyz"}


def pieces(tokens):
    return "".join(PIECES[token] for token in tokens)


def byte_text(tokens):
    """Byte tokens: an unfinished character is a replacement sign, as byte-level tokenizers show it."""
    return bytes(tokens).decode("utf-8", errors="replace")


def drafted(*tokens):
    """A chain whose tokens were all accepted but the last, which is the bonus."""
    emitted = [Emitted(token, Role.ACCEPTED, i, 0.5) for i, token in enumerate(tokens)]
    emitted[-1] = Emitted(tokens[-1], Role.BONUS, len(tokens) - 1, 0.5, 0.3)
    return StepOutcome(tuple(emitted), tuple(Examined(i, 0.5, 0.5, 0.1, True) for i in range(len(tokens) - 1)))


def rule(decode_text=pieces, eos_ids=(9,), **params):
    return StopRule(SamplingParams(**{"max_new_tokens": 50} | params), eos_ids, decode_text)


def told(cut: TruncatedOutcome):
    return [each.token for each in cut.verdict.emitted], cut.reason


def test_without_an_end_the_verdict_stays_whole():
    verdict = drafted(0, 1, 2)
    assert rule().cut([0], verdict) == TruncatedOutcome(verdict, None)


@pytest.mark.parametrize(("place", "role"), [(0, Role.ACCEPTED), (1, Role.ACCEPTED), (2, Role.BONUS)])
def test_an_end_token_anywhere_in_the_draft(place, role):
    tokens = [0, 1, 2]
    tokens[place] = 9
    cut = rule().cut([], drafted(*tokens))
    assert told(cut) == (tokens[: place + 1], FinishReason.EOS)
    assert cut.verdict.emitted[-1].role is role
    assert len(cut.verdict.examined) == min(place + 1, 2)
    assert cut.verdict.n_accepted == sum(each.accepted for each in cut.verdict.examined)


def test_ignoring_eos_goes_on_to_the_length():
    assert told(rule(ignore_eos=True, max_new_tokens=2).cut([], drafted(9, 9, 9))) == ([9, 9], FinishReason.LENGTH)
    # a token named as a stop token ends all the same
    assert told(rule(ignore_eos=True, stop_token_ids=(9,)).cut([], drafted(0, 9, 0))) == ([0, 9], FinishReason.STOP)


def test_the_length_inside_a_draft():
    cut = rule(max_new_tokens=4).cut([0, 0], drafted(1, 1, 1, 1))
    assert told(cut) == ([1, 1], FinishReason.LENGTH)
    assert len(cut.verdict.examined) == 2


def test_the_first_end_wins_and_eos_before_stop_before_length():
    assert told(rule(stop_token_ids=(9, 2)).cut([], drafted(2, 9, 0))) == ([2], FinishReason.STOP)
    assert told(rule(stop_token_ids=(9,), max_new_tokens=1).cut([], drafted(9, 0))) == ([9], FinishReason.EOS)
    assert told(rule(stop_token_ids=(2,), max_new_tokens=1).cut([], drafted(2, 0))) == ([2], FinishReason.STOP)
    assert told(rule(stop=("c",), max_new_tokens=1).cut([], drafted(2, 0))) == ([2], FinishReason.STOP)


@pytest.mark.parametrize(
    ("stop", "generated", "tokens", "kept", "text"),
    [
        (("bc",), [], [0, 1, 2, 0], [0, 1, 2], "a"),  # across two tokens of one draft
        (("bc",), [0, 1], [2, 0], [2], "a"),  # across steps
        (("abca",), [0], [4, 0, 0], [4, 0], ""),  # across three tokens, from the very beginning
        (("b",), [], [0, 4, 0], [0, 4], "a"),  # the token goes on after the stop string
        (("yz", "x"), [0], [6, 0], [6], "a"),  # two in one token: the earlier one cuts
        (("c", "bc"), [0], [4, 0], [4], "a"),
        (("b",), [], [0, 5, 1, 0], [0, 5, 1], "a"),  # a token without text in between
    ],
)
def test_stop_strings_are_found_in_the_text_of_the_tokens(stop, generated, tokens, kept, text):
    stops = rule(stop=stop)
    cut = stops.cut(generated, drafted(*tokens))
    assert told(cut) == (kept, FinishReason.STOP)
    assert stops.text([*generated, *kept], FinishReason.STOP) == text


@pytest.mark.parametrize("stop", ["é", "né", "é!", "日本", "本"])
def test_stop_strings_that_end_in_a_character_of_several_tokens(stop):
    tokens = list("on a né! 日本 x".encode())
    stops = rule(byte_text, stop=(stop,), eos_ids=())
    cut = stops.cut([], drafted(*tokens))
    kept, reason = told(cut)
    assert reason is FinishReason.STOP
    assert byte_text(kept).endswith(stop)
    assert stops.text(kept, reason) == byte_text(kept)[: -len(stop)]


def test_a_stop_string_does_not_count_before_min_tokens():
    stops = rule(stop=("b",), min_tokens=3)
    assert told(stops.cut([], drafted(1, 0, 0, 1, 0))) == ([1, 0, 0, 1], FinishReason.STOP)
    assert stops.text([1, 0, 0, 1], FinishReason.STOP) == "baa"


@pytest.mark.parametrize(
    ("tokens", "text"), [([0, 1, 2], "abc"), ([0, 3], ""), ([1, 3], "b")], ids=["not there", "whole", "behind"]
)
def test_a_last_token_that_is_a_stop_token_and_may_complete_a_stop_string(tokens, text):
    """A stop token's own text stays, unless it completes a stop string."""
    stops = rule(stop=("aab", "ab"), stop_token_ids=(2, 3), min_tokens=2)
    cut = stops.cut(tokens[:-1], drafted(tokens[-1], 0))
    assert told(cut) == (tokens[-1:], FinishReason.STOP)
    assert stops.text(tokens, FinishReason.STOP) == text


def test_the_text_is_only_cut_where_a_stop_string_ended_it():
    stops = rule(stop=("b",), eos_ids=(1,), max_new_tokens=2)
    assert stops.text([0, 1], FinishReason.EOS) == "ab"
    assert stops.text([0, 1], FinishReason.LENGTH) == "ab"
    assert rule(stop_token_ids=(1,)).text([0, 1], FinishReason.STOP) == "ab"


def test_trim_keeps_rejected_siblings_before_the_last_kept_token():
    """Tree rules look at siblings before the one they keep."""
    emitted = tuple(Emitted(token, Role.ACCEPTED, 0, 0.5) for token in (1, 2, 3))
    examined = tuple(Examined(node, 0.5, 0.5, NAN, ok) for node, ok in enumerate((0, 1, 0, 0, 1, 1)))
    verdict = StepOutcome(emitted, examined, 0.4)
    assert [each.node for each in trim(verdict, 1).examined] == [0, 1]
    assert [each.node for each in trim(verdict, 2).examined] == [0, 1, 2, 3, 4]
    assert trim(verdict, 3) is verdict
    assert math.isnan(trim(verdict, 2).residual_mass)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", slow_unless(list(Protocol), [Protocol.CHAIN, Protocol.GREEDY, Protocol.TREE]))
@pytest.mark.parametrize("stop", fast_first(map(pytest.param, [("dd",), ("aba", "g"), ("hc", "bf", "ee")])))
def test_in_the_loop_the_text_ends_before_its_first_stop_string(protocol, stop):
    temperature = 0.0 if protocol is Protocol.GREEDY else 1.0
    sampling = SamplingParams(temperature=temperature, max_new_tokens=40, stop=stop, seed=2)
    stopped = 0
    for generation in generate(Setup(protocol=protocol, gamma=6, rows=4), requests(25, sampling)).values():
        whole, trace = spell(generation.tokens), decode(generation.trace)
        places = [whole.find(each) for each in stop if each in whole]
        assert (generation.finish_reason is FinishReason.STOP) == bool(places)
        assert generation.text == (whole[: min(places)] if places else whole)
        assert not any(each in spell(generation.tokens[:-1]) for each in stop)
        assert int(trace.examined_accepted.sum()) == trace.n_accepted
        stopped += bool(places) and trace.role[-1] == Role.ACCEPTED
    # argmax drafts seldom hold the stop string
    assert stopped > 0 or load(protocol).facts.draft_rule is DraftRule.GREEDY


@pytest.mark.medium
def test_stop_strings_cut_a_speculative_run_where_they_cut_a_plain_one():
    sampling = SamplingParams(temperature=1.0, max_new_tokens=60, stop=("ac", "fe"), stop_token_ids=(6,), min_tokens=3)
    wanted = requests(20, sampling)
    for change in ({}, {"ignore_eos": True}):
        asked = [replace(each, sampling=replace(sampling, **change)) for each in wanted]
        plain = generate(Setup(None, Protocol.GUMBEL, eos_ids=(7,)), asked)
        drafted_ = generate(Setup(protocol=Protocol.GUMBEL, gamma=6, rows=3, eos_ids=(7,)), asked)
        for name, generation in plain.items():
            other = drafted_[name]
            assert (generation.tokens, generation.text) == (other.tokens, other.text)
            assert generation.finish_reason is other.finish_reason


def test_a_request_may_end_with_its_first_token():
    for sampling in (SamplingParams(max_new_tokens=1), SamplingParams(stop_token_ids=tuple(range(8)))):
        for protocol in (Protocol.GREEDY, Protocol.GUMBEL):
            for generation in make_loop(Setup(protocol=protocol, rows=2)).run(requests(3, sampling)):
                trace = decode(generation.trace)
                assert len(generation.tokens) == len(trace.token) == trace.steps == 1
