"""Counts of arms at an endpoint: from answers, from counters, or unknown, and never a 0 that nobody counted."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import text

import schemas
from audit.evidence.records import ArmKind, Level
from audit.store import NewArm, NewRequest, RunStatus, Store
from audit.store.base.values import CountSource, Resolution
from audit.store.sums.accounts import endpoint_counts
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill_finished, start
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]

SERVED = {"backend": "openai", "server_counters": True, "requested": {"speculation": True}, "effective": {}}
ENDPOINT = Effective.from_json(SERVED)
ANSWERS = [{"speculation": {"drafted": 8, "accepted": 5, "steps": 3}}, {"speculation": {"drafted": 4, "accepted": 1}}]
COUNTERS = {"server_counters": {"drafted": 187, "accepted": 92, "requests": 2}}


def counted(*facts, **more):
    return endpoint_counts(Effective.from_json({**SERVED, **more}), facts, facts)


def test_answers_are_added_up_per_request():
    found = counted(*ANSWERS)
    assert (found.drafted, found.accepted, found.steps) == (12, 6, None)
    assert (found.source, found.resolution) == (CountSource.ANSWERS, Resolution.REQUEST)
    assert counted(ANSWERS[0], {"error": {"kind": "timeout"}}).steps == 3


def test_answers_to_directed_requests_are_left_out_and_a_servers_counters_hold_all():
    facts, own = (*ANSWERS, *ANSWERS), ANSWERS
    assert endpoint_counts(ENDPOINT, facts, own) == counted(*ANSWERS)
    assert endpoint_counts(ENDPOINT, [{}, COUNTERS], [{}]) == counted({}, COUNTERS)


def test_counters_count_where_answers_do_not_cover_every_request():
    found = counted(ANSWERS[0], COUNTERS)
    assert (found.drafted, found.accepted, found.steps) == (187, 92, None)
    assert (found.source, found.resolution) == (CountSource.COUNTERS, Resolution.RUN)


@pytest.mark.parametrize(
    ("facts", "more"),
    [
        ([{}, {}], {}),
        # an interrupted call of the engine left requests that no counter covers
        ([{}, {}, COUNTERS], {}),
        ([{}, {"server_counters": {"drafted": 1, "accepted": 1, "restarted": True}}], {}),
        ([{}, {"server_counters": {"samples": {"other_accept": 1.0}}}], {}),
        # every request was sent twice
        ([{}, COUNTERS], {"stream": "both"}),
    ],
)
def test_what_nobody_counted_is_unknown(facts, more):
    found = counted(*facts, **more)
    assert (found.steps, found.drafted, found.accepted) == (None, None, None)
    assert (found.source, found.resolution) == (CountSource.UNKNOWN, None)


def test_a_server_that_does_not_speculate_drafts_nothing():
    found = counted({}, effective={"speculation": False})
    assert (found.steps, found.drafted, found.accepted, found.source) == (None, 0, 0, CountSource.SERVER)


def answer(case, facts):
    request = Request(case, (1, 2), SamplingParams(), 1)
    engine = ForeignEngine(8, (), Protocol.CHAIN, "served", RecordLevel.TOKENS)
    header = header_of(request, engine, FinishReason.LENGTH, facts)
    trace = observed_trace(header, ForeignRecord((ForeignStep((), (3,)), ForeignStep((), (4,)))))
    return Generation(request, (3, 4), FinishReason.LENGTH, trace, "ab", 7, facts)


@pytest.fixture
def url(any_url):
    def arm(name, kind, effective):
        return NewArm(name, kind, Level.L1, {}, effective, True)

    arms = (
        arm("plain", ArmKind.BASELINE, Effective.from_json({**SERVED, "effective": {"speculation": False}})),
        arm("silent", ArmKind.CANDIDATE, ENDPOINT),
        arm("speculating", ArmKind.CANDIDATE, ENDPOINT),
    )
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start(arms=arms))
        for case, facts in (("a", {}), ("b", COUNTERS)):
            store.add_requests(run, [NewRequest("plain", "chat", case, 0, answer(case, {}))])
            store.add_requests(run, [NewRequest("silent", "chat", case, 0, answer(case, {}))])
            store.add_requests(run, [NewRequest("speculating", "chat", case, 0, answer(case, facts))])
        store.finish_run(run, RunStatus.FINISHED, 0)
    return any_url


@pytest.mark.medium
def test_the_tables_show_the_counters_and_a_dash_for_what_is_unknown(url):
    lines = invoke("show", "--store", url).stdout.splitlines()
    table = lines[: lines.index("acceptance by estimator")]
    rows = {line.split()[0]: line.split() for line in table if line.startswith(("plain ", "silent ", "speculating "))}
    assert rows["plain"][5:] == ["-", "0", "0", "4"]
    assert rows["silent"][5:] == ["-", "-", "-", "4"]
    assert rows["speculating"][5:] == ["-", "187", "92", "4"]
    said = "  arm speculating: drafted and accepted from the server's counters, per run and with all its clients; "
    assert f"{said}unknown (-): forwards" in lines


@pytest.mark.medium
def test_the_document_states_source_and_resolution(url):
    document = json.loads(invoke("show", "--json", "--store", url).stdout)
    Draft202012Validator(schemas.load("results")).validate(document)
    found = {arm["name"]: arm["counts"] for arm in document["run"]["arms"]}
    facts = ("steps", "drafted", "accepted", "source", "resolution")
    assert [found["silent"][name] for name in facts] == [None, None, None, "unknown", None]
    assert [found["speculating"][name] for name in facts] == [None, 187, 92, "counters", "run"]


COUNTS = ("n_steps", "n_drafted", "n_accepted")
REQUESTS = f"SELECT arm, n_output, {', '.join(COUNTS)} FROM v_request ORDER BY arm, case_id"
RATES = f"SELECT {', '.join(COUNTS)}, n_output, draft_acceptance_rate, tokens_per_step FROM v_acceptance"


def rows(url, query):
    with connected(url) as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_the_views_give_null_for_what_an_endpoint_does_not_report(url):
    assert {row[1:] for row in rows(url, REQUESTS)} == {(2, None, None, None)}
    assert rows(url, RATES) == [(None, None, None, 4, None, None)] * 3


@pytest.mark.medium
def test_the_views_keep_the_counts_of_engines_that_report_steps(any_url):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
    counted = [("base", 5, 5, 0, 0), ("base", 3, 3, 0, 0), ("spec", 8, 3, 10, 5), ("spec", 3, 1, 4, 2)]
    assert rows(any_url, REQUESTS) == counted


@pytest.mark.medium
def test_accounts_that_were_erased_are_unknown_and_never_a_part_of_the_sum(url):
    with Store.open(url, create=False) as store:
        run = store.resolve("latest")
        store.erase([store.plan_erasure(run, ["speculating/b#0"])], "asked for", "ci")
        counts = {arm.name: arm.counts for arm in store.load_run(run).arms}
    found = counts["speculating"]
    assert (found.drafted, found.accepted, found.source) == (None, None, CountSource.UNKNOWN)
    assert (found.requests, found.output) == (2, 4)


@pytest.mark.medium
def test_queries_give_null_for_steps_that_an_endpoint_does_not_report(url):
    rows = json.loads(invoke("query", "acceptance", "--format", "json", "--store", url).stdout)
    assert len(rows) == 3
    for row in rows:
        assert (row["n_steps"], row["n_drafted"], row["n_accepted"], row["tokens_per_step"]) == (None,) * 4
        assert row["n_output"] == 4
    assert json.loads(invoke("query", "steps", "--format", "json", "--store", url).stdout) == []
