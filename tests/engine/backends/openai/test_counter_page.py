"""The page of counters: the first that answers, and statistics of iterations that each reading takes away."""

import json

import pytest

from engine.backends.openai.forms.counter_page import ITERATIONS, CounterPage
from engine.backends.openai.server_counters import counters

FIRST, SECOND = "http://a/prometheus/metrics", "http://a/metrics"
DRAFTED, ACCEPTED = (f"trtllm_spec_decode_num_{name}_tokens_total" for name in ("draft", "accepted"))


def pages(**told):
    """Answers by address, one for each reading."""
    left = {{"first": FIRST, "second": SECOND}[name]: list(each) for name, each in told.items()}
    return lambda address: left[address].pop(0) if address in left else None


def iteration(drafted, accepted, **more):
    return {"iter": 1, "specDecodingStats": {"numDraftTokens": drafted, "numAcceptedTokens": accepted}, **more}


def read(*documents):
    page = CounterPage(pages(second=[json.dumps(each) for each in documents]), (FIRST, SECOND))
    return [page.read() for _ in documents]


def test_the_first_page_that_answers_is_read():
    assert CounterPage(pages(first=["x 1\n"], second=["[]"]), (FIRST, SECOND)).read() == "x 1\n"
    assert CounterPage(pages(), (FIRST, SECOND)).read() == ""
    assert CounterPage(pages(first=["x 1\n"]), ()).read() == ""


def test_iterations_are_summed_over_readings():
    _, last = read([iteration(4, 2), iteration(4, 0)], [iteration(4, 4)])
    assert counters(last) == {DRAFTED: 12.0, ACCEPTED: 6.0}


def test_the_other_ranks_repeat_the_first_ones_numbers():
    (page,) = read([iteration(4, 2, attentionDpRank=0), iteration(4, 2, attentionDpRank=1)])
    assert counters(page) == {DRAFTED: 4.0, ACCEPTED: 2.0}


@pytest.mark.parametrize(
    "document", [[], [{"iter": 1}], [{"specDecodingStats": None}], [3], [iteration("4", None)], [iteration(-1, -1)]]
)
def test_iterations_without_drafts_count_nothing(document):
    (page,) = read(document)
    assert page.startswith(ITERATIONS)
    assert counters(page) == {}


def test_a_page_that_only_begins_like_json_counts_nothing():
    page = CounterPage(pages(second=["[1, "]), (FIRST, SECOND)).read()
    assert counters(page) == {}
