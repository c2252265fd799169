"""The text against a second decoding: engines whose text is out of order, doubled or cut are found."""

from dataclasses import replace

import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.verdicts import Verdict
from engine import verify
from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.decode.seams import LoopParts
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import PlainProposer
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.stopping import StopRule
from tests.engine.build import Setup, requests, spell, target_script

CHECK = checks.load("text")
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=12, seed=3)


class OutOfOrder(StopRule):
    """Gives the text of the last two tokens in the wrong order."""

    def text(self, tokens, reason):
        return super().text((*tokens[:-2], *tokens[:-3:-1]), reason)


def emitted(sampling=SAMPLED, stops=StopRule):
    """The requests of the native loop, sampled, with the given maker of texts."""
    setup = Setup(None, Protocol.GUMBEL)
    target = ScriptedModel(target_script(setup), setup.vocabulary)
    options = LoopOptions(2, 0, 64, setup.level)
    loop = Loop(target, PlainProposer(), verify.load(Protocol.GUMBEL), spell, options, parts=LoopParts(stops=stops))
    records = []
    for index, made in enumerate(loop.run(requests(6, sampling))):
        trace = decode(made.trace)
        facts = (trace, made.tokens, made.text, made.finish_reason)
        records.append(RequestRecord(trace.header.request, f"case-{index}", 0, "chat", *facts, 1, intact=True))
    return records


def judged(records):
    arm = ArmRecord("spec", ArmKind.CANDIDATE, Level.L4, Effective(), tuple(records))
    return evaluate(CHECK, Evidence(arm), {})


def test_text_in_order_is_certified():
    found = judged(emitted())
    assert (found.verdict, found.n) == (Verdict.CERTIFIED, 6)
    assert found.summary.startswith("all 6 texts are what their tokens decode to")


def test_text_out_of_order_is_found_in_a_sampled_arm():
    clean, broken = emitted(), emitted(stops=OutOfOrder)
    assert [each.tokens for each in clean] == [each.tokens for each in broken]
    wrong = [each.request_id for each in broken if each.tokens[-1] != each.tokens[-2]]
    found = judged(broken)
    assert found.verdict is Verdict.FAULT
    assert [each.request for each in found.findings] == wrong
    assert "at character" in found.findings[0].message


def test_a_stop_string_cuts_the_text():
    text = emitted()[0].text
    records = emitted(replace(SAMPLED, stop=(text[4:6],)))
    assert any(each.finish_reason is FinishReason.STOP for each in records)
    assert judged(records).verdict is Verdict.CERTIFIED
    stopped = next(each for each in records if each.finish_reason is FinishReason.STOP)
    assert judged([replace(stopped, text=stopped.text + text[4])]).verdict is Verdict.FAULT


def known(request, text, decoded, **decoding):
    return reported(request, text, {"decoded": decoded, "decoding": decoding})


def reported(request, text, facts):
    header = replace(request.trace.header, facts=facts)
    return replace(request, text=text, trace=replace(request.trace, header=header))


@pytest.mark.parametrize(
    ("text", "decoded", "verdict"),
    [
        ("caf", "caf\ufffd", Verdict.CERTIFIED),
        ("caf", "cafe", Verdict.FAULT),
        ("cafecafe", "cafe", Verdict.FAULT),
        ("", "cafe", Verdict.FAULT),
    ],
)
def test_only_an_incomplete_character_may_be_held_back(text, decoded, verdict):
    assert judged([known(emitted()[0], text, decoded)]).verdict is verdict


def test_without_a_second_decoding_nothing_is_certified():
    first, *rest = emitted()
    bare = replace(first, trace=replace(first.trace, header=replace(first.trace.header, facts={})))
    assert judged([bare]).verdict is Verdict.NOT_RUN
    assert judged([bare, *rest]).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("text", "verdict"), [("say ", Verdict.CERTIFIED), ("say", Verdict.CERTIFIED), ("sa", Verdict.FAULT)]
)
def test_what_the_backend_declares_open_may_be_missing_but_no_more(text, verdict):
    # the last token is a blank and half a character, and an engine may emit a token's bytes together only
    assert judged([known(emitted()[0], text, "say \ufffd", held=2)]).verdict is verdict


@pytest.mark.parametrize(("text", "verdict"), [("one, two,", Verdict.CERTIFIED), ("one, two", Verdict.FAULT)])
def test_a_stop_string_may_be_shown(text, verdict):
    first = emitted(replace(SAMPLED, stop=(",",)))[0]
    stopped = replace(first, finish_reason=FinishReason.STOP)
    assert judged([known(stopped, text, "one, two, three", stop_shown=True)]).verdict is verdict


@pytest.mark.parametrize(
    ("text", "decoded", "verdict", "told"),
    [
        ("a b", "a b", Verdict.CERTIFIED, "all 2 texts"),
        ("a b", "ab", Verdict.INCONCLUSIVE, "differ from the text in blanks only"),
        ("caf\u00e9s", "caf\ufffd\ufffds", Verdict.INCONCLUSIVE, "hold broken characters"),
        ("b a", "a b", Verdict.FAULT, "1 of 2 texts"),
    ],
)
def test_joined_tokens_may_have_lost_blanks_and_characters_but_no_order(text, decoded, verdict, told):
    first, second, *_ = emitted()
    found = judged([known(first, text, decoded, joined=True), second])
    assert found.verdict is verdict
    assert told in found.summary


def test_blanks_count_where_the_tokens_themselves_are_decoded():
    assert judged([known(emitted()[0], "a b", "ab")]).verdict is Verdict.FAULT


def test_text_before_its_tokens_in_a_stream_is_found():
    found = judged([known(emitted()[0], "ab", "ab", ahead=(3, 4))])
    assert found.verdict is Verdict.FAULT
    assert "up to chunk 3 of the stream" in found.findings[0].message


def test_answers_in_parts_are_no_one_text():
    first, second, *_ = emitted()
    parts = reported(first, "{}", {"parts": ["tool_calls"]})
    alone = judged([parts])
    assert (alone.verdict, alone.lacking) == (Verdict.NOT_RUN, False)
    found = judged([parts, second])
    assert (found.verdict, found.n) == (Verdict.CERTIFIED, 1)
    assert found.summary.endswith("1 answers in parts are not compared")


def test_the_backends_reason_is_told():
    found = judged([reported(emitted()[0], "ab", {"undecoded": "the answer names no tokens"})])
    assert (found.verdict, found.lacking) == (Verdict.NOT_RUN, True)
    assert found.summary == "the text has one account only: the answer names no tokens"
