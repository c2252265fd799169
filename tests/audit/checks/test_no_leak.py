"""Check no_leak: clean streams leak nothing; each way to leak is a fault."""

import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.verdicts import Verdict
from tests.audit.checks.streamed_arms import SCENARIOS, decided, evidence, stream, with_facts, with_stream

CHECK = load("no_leak")


def judge(found):
    return evaluate(CHECK, found, {})


@pytest.mark.parametrize("name", [each for each in SCENARIOS if each != "plain"])
def test_clean_streams_are_certified(name):
    result = judge(evidence(name))
    assert (result.verdict, result.statistic, result.n) == (Verdict.CERTIFIED, 0.0, 8)


def test_an_arm_without_a_stream_has_nothing_to_leak():
    result = judge(evidence("plain"))
    assert (result.verdict, result.lacking) == (Verdict.NOT_RUN, False)


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["chunk_before_verification", "filter_reads_drafts", "filter_not_rolled_back"])
def test_text_of_drafts_is_a_fault(fault):
    assert judge(evidence("gumbel", fault)).verdict is Verdict.FAULT


@pytest.mark.medium
def test_a_stop_string_that_leaves_in_part_is_a_fault():
    result = judge(evidence("stopped", "stop_string_not_held"))
    assert result.verdict is Verdict.FAULT
    assert "the stream read" in result.findings[0].message


def said(found):
    result = judge(found)
    assert result.verdict is Verdict.FAULT
    return "; ".join(each.message for each in result.findings)


@pytest.mark.medium
def test_every_way_to_leak_is_named():
    clean = evidence("stopped")
    chunks = stream(clean)["chunks"]
    (first, text), *rest = chunks
    assert "the chunks add up to '!" in said(with_stream(clean, chunks=[[first, f"!{text}"], *rest]))
    assert "in another order" in said(with_stream(clean, chunks=[rest[0], [first, text], *rest[1:]]))
    assert "were decoded again" in said(with_facts(clean, lambda facts: {**facts, "ends": facts["ends"][:-1]}))
    moved = [[first, text + rest[0][1][:1]], [rest[0][0], rest[0][1][1:]], *rest[1:]]
    assert "with text that its tokens do not decode to" in said(with_stream(clean, chunks=moved))


def test_a_chunk_inside_a_step_is_a_fault():
    clean = evidence("gumbel")
    chunks = stream(clean)["chunks"]
    first = clean.candidate.requests[0].trace.n_emitted[0]
    assert "where no step ends" in said(with_stream(clean, chunks=[[int(first) - 1, ""], *chunks]))


def test_a_decision_about_text_that_was_not_there_is_a_fault():
    clean = evidence("gumbel")
    request = decided(clean)
    early = [{**each, "token": each["token"] - 1} for each in stream(clean, request)["decisions"]]
    assert "which were not committed" in said(with_stream(clean, request, decisions=early))


def test_a_damaged_stream_leaves_the_arm_undecided():
    result = judge(with_stream(evidence("gumbel"), chunks=None))
    assert (result.verdict, result.details["without_stream"]) == (Verdict.INCONCLUSIVE, 1)


@pytest.mark.medium
def test_a_chunk_that_waits_for_no_filter_is_a_fault():
    clean = evidence("stopped")
    (_, first), (tokens, second), *rest = stream(clean)["chunks"]
    result = judge(with_stream(clean, chunks=[[tokens, first + second], *rest]))
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 1.0)
    assert result.findings[0].message.startswith("chunk 0 is ")
