"""Records whose tokens are not the engine's own: what is judged on them, and what is not."""

from dataclasses import replace

import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, RecordLevel
from engine.record.columns import TABLE
from tests.audit.checks.simulator import GREEDY, Setup, arm, world


def text_only(record: ArmRecord, origin: str | None, eos_ids=()) -> ArmRecord:
    """The arm as an endpoint would show it: no number of a row, one origin of tokens."""

    def reduced(request):
        facts = {} if origin is None else {"tokens": origin}
        header = replace(request.trace.header, level=RecordLevel.TOKENS, facts=facts, eos_ids=eos_ids)
        level = RecordLevel.TOKENS
        bare = {column.name: getattr(request.trace, column.name)[:0] for column in TABLE if level not in column.levels}
        return replace(request, trace=replace(request.trace, header=header, margin=request.trace.margin[:0], **bare))

    return replace(record, level=Level.L0, requests=tuple(map(reduced, record.requests)))


def pair(origin, change):
    plain = arm(world(1), Setup(sampling=GREEDY), 12)
    first = plain.requests[0]
    other = replace(plain, requests=(change(first), *plain.requests[1:]))
    return Evidence(text_only(other, origin), text_only(plain, origin))


def same(request):
    return request


def other_token(request):
    tokens = (*request.tokens[:3], (request.tokens[3] + 1) % 8, *request.tokens[4:])
    return replace(request, tokens=tokens)


def ends_early(request):
    return replace(request, tokens=request.tokens[:-2], finish_reason=FinishReason.EOS)


ORIGINS = [None, "server", "tokenizer", "characters"]


@pytest.mark.parametrize("origin", ORIGINS)
def test_equal_texts_are_certified_without_any_number(origin):
    found = evaluate(load("greedy_equality"), pair(origin, same), {})
    assert found.verdict is Verdict.CERTIFIED, found.summary


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_text_is_not_certified_and_no_fault_without_leads(origin):
    found = evaluate(load("greedy_equality"), pair(origin, other_token), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.details["divergences"]["untriaged"] == 1


@pytest.mark.parametrize(
    ("origin", "verdict"),
    [
        (None, Verdict.FAULT),
        ("server", Verdict.FAULT),
        ("tokenizer", Verdict.INCONCLUSIVE),
        ("characters", Verdict.INCONCLUSIVE),
    ],
)
def test_another_end_is_a_fault_only_where_the_end_is_a_token(origin, verdict):
    assert evaluate(load("greedy_equality"), pair(origin, ends_early), {}).verdict is verdict


def reads_another_text(request):
    return replace(request, text=request.text + " and a call")


@pytest.mark.parametrize(("origin", "verdict"), [("server", Verdict.FAULT), ("tokenizer", Verdict.INCONCLUSIVE)])
def test_another_text_of_the_same_tokens_is_a_difference(origin, verdict):
    found = evaluate(load("greedy_equality"), pair(origin, reads_another_text), {})
    assert found.verdict is verdict
    assert "the same tokens give another text" in found.findings[0].message


@pytest.mark.parametrize(
    ("origin", "eos_ids", "verdict"),
    [
        (None, (), Verdict.CERTIFIED),
        ("server", (99,), Verdict.CERTIFIED),
        ("server", (), Verdict.NOT_RUN),
        ("tokenizer", (99,), Verdict.NOT_RUN),
        ("characters", (), Verdict.NOT_RUN),
    ],
)
def test_nothing_is_counted_on_tokens_that_are_not_the_engines(origin, eos_ids, verdict):
    plain = arm(world(1), Setup(sampling=GREEDY), 4)
    assert evaluate(load("accounting"), Evidence(text_only(plain, origin, eos_ids)), {}).verdict is verdict
