"""Lists of runs and requests: every filter keeps what fits, and pages neither lose nor repeat a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from sqlalchemy import event

from audit.errors import UserError
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store import ArtifactRef, NewArm, NewCheck, NewRequest, RunStatus, Store, StoredDecision
from audit.store.base.values import RequestKey
from audit.store.browse.browser import Browser
from audit.store.browse.request_list import RequestFilter, request_key
from audit.store.browse.run_list import RunEnd, RunFilter
from engine.record.effective import Effective
from tests.audit.store.build import RESULT, connected, fill, fill_finished, generation, start
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]
TODAY = datetime.now(UTC).date()
FITS = {
    "suite": RunFilter(suite="MOK"),
    "actor": RunFilter(actor="test"),
    "model": RunFilter(model="BIG"),
    "digest": RunFilter(model=f"sha256:{'a' * 12}"),
    "engine": RunFilter(engine="native"),
    "end": RunFilter(end=RunEnd.FAIL),
    "verdict": RunFilter(verdict=Verdict.FAULT),
    "since": RunFilter(since=TODAY),
    "until": RunFilter(until=date.max),
}
NONE_FITS = {
    "suite": RunFilter(suite="sm_ke"),
    "actor": RunFilter(actor="nobody"),
    "model": RunFilter(model="%"),
    "engine": RunFilter(engine="vllm"),
    "end": RunFilter(end=RunEnd.PASS),
    "verdict": RunFilter(verdict=Verdict.INCONCLUSIVE),
    "since": RunFilter(since=date.max),
    "until": RunFilter(until=date(2020, 1, 1)),
}


def one_run(store):
    """A failed run of one arm of the engine `native`, with a decision."""
    arm = NewArm("spec", ArmKind.CANDIDATE, Level.L4, {}, Effective.from_json({"backend": "native"}), True)
    run = store.begin_run(start(arms=(arm,), artifacts=(ArtifactRef("target", "target", "big", None, "a" * 64),)))
    store.add_check(run, NewCheck("spec", "law", "law", Level.L4, replace(RESULT, verdict=Verdict.INCONCLUSIVE)))
    store.add_check(run, NewCheck("spec", "law", "law", Level.L4, replace(RESULT, verdict=Verdict.FAULT)))
    store.finish_run(run, RunStatus.FINISHED, 1)
    store.add_decision(StoredDecision(run, "e" * 64, {}, "block", (), "ci", datetime.now(UTC)))
    return run


def walked(ask):
    """All pages onward from the first, and back again from the last."""
    pages = [ask(None, False)]
    while (cursor := onward(pages[-1])) is not None:
        pages.append(ask(cursor, False))
    back = [pages[-1]]
    while (cursor := backward(back[-1])) is not None:
        back.append(ask(cursor, True))
    return pages, back[::-1]


def onward(page):
    return page.older if hasattr(page, "older") else page.onward


def backward(page):
    return page.newer if hasattr(page, "newer") else page.back


@pytest.mark.medium
def test_each_filter_of_runs_keeps_what_fits_and_nothing_else(any_url):
    with Store.open(any_url, create=False) as store:
        run = one_run(store)
        with Browser.open(any_url, create=False, read_only=True) as browser:
            missed = [name for name, one in FITS.items() if not browser.runs(one, "", newer=False, limit=5).runs]
            kept = [name for name, one in NONE_FITS.items() if browser.runs(one, "", newer=False, limit=5).runs]
            (listed,) = browser.runs(RunFilter(), "", newer=False, limit=5).runs
            names = browser.run_names(9)
    assert (missed, kept) == ([], [])
    assert (listed.ulid, listed.end, listed.decision) == (run, RunEnd.FAIL, "block")
    assert (listed.models, listed.engines) == (("big",), ("native",))
    assert listed.verdicts == {Verdict.FAULT: 1}
    assert (names.suites, names.models, names.actors) == (("smoke",), ("big",), ("tester",))


@pytest.mark.medium
def test_pages_of_runs_hold_every_run_once_in_both_directions(any_url):
    with Store.open(any_url, create=False) as store, Browser.open(any_url, create=False, read_only=True) as browser:
        runs = [store.begin_run(start()) for _ in range(7)]
        store.begin_run(start(suite_name="other"))
        wanted = RunFilter(suite="smoke")
        pages, back = walked(lambda cursor, newer: browser.runs(wanted, cursor or "", newer=newer, limit=3))
        unknown = browser.runs(wanted, "NONE", newer=False, limit=9)
        past = browser.runs(wanted, runs[0], newer=False, limit=3)
    assert [one.ulid for page in pages for one in page.runs] == runs[::-1]
    assert pages[0].newer is None
    assert [[one.ulid for one in page.runs] for page in back] == [[one.ulid for one in page.runs] for page in pages]
    assert len(unknown.runs) == 7
    assert past.runs == ()


@pytest.mark.medium
def test_pages_of_requests_hold_every_request_once_in_both_directions(any_url):
    with Store.open(any_url, create=False) as store, Browser.open(any_url, create=False, read_only=True) as browser:
        run = store.begin_run(start())
        news = [
            NewRequest(arm, "chat", f"c{index // 2}", index % 2, generation(((1, 1),)))
            for arm in ("spec", "base")
            for index in range(5)
        ]
        store.add_requests(run, news)
        fill(store)
        pages, back = walked(
            lambda cursor, back: browser.requests(run, RequestFilter(), cursor or 0, back=back, limit=3)
        )
        foreign = browser.requests(run, RequestFilter(), 12, back=False, limit=50)
    keys = [one.key for page in pages for one in page.requests]
    assert sorted(keys) == sorted(RequestKey(new.arm, new.case_id, new.sample) for new in news)
    assert [key.case_id for key in keys] == sorted(key.case_id for key in keys)
    assert back == pages
    assert len(foreign.requests) == 10


@pytest.mark.medium
def test_each_filter_of_requests_keeps_what_fits_and_nothing_else(any_url):
    finding = Finding("spec/case-b#0", 1, "differs")
    with Store.open(any_url, create=False) as store:
        run = fill(store)
        store.add_requests(run, [NewRequest(arm, "chat", "same", 0, generation(((0, 0),))) for arm in ("base", "spec")])
        store.add_check(run, NewCheck("spec", "law", "law", Level.L4, replace(RESULT, findings=(finding,))))
        with Browser.open(any_url, create=False, read_only=True) as browser:

            def keys(**wanted):
                page = browser.requests(run, RequestFilter(**wanted), 0, back=False, limit=9)
                return [one.key.name for one in page.requests]

            spec = ["spec/case-a#0", "spec/case-b#0", "spec/same#0"]
            assert keys(arm="spec") == spec
            assert keys(domain="code") == ["base/case-b#0", "spec/case-b#0"]
            assert keys(case="sam") == ["base/same#0", "spec/same#0"]
            assert keys(case="sam_") == []
            assert keys(check="any") == keys(check="law") == ["spec/case-b#0"]
            assert keys(check="replay") == []
            assert keys(divergent=True) == spec[:2]
            (flagged,) = browser.requests(run, RequestFilter(check="law"), 0, back=False, limit=9).requests
            assert flagged.checks == ("law",)
            places = browser.request_places(run)
            with pytest.raises(UserError, match="no arm 'nothing'"):
                keys(arm="nothing")
    assert (places.arms, places.domains, places.checks) == (("base", "spec"), ("chat", "code"), ("law",))


def test_an_endpoint_has_no_steps_in_the_list_and_no_acceptance_in_the_trends(store):
    arms = (
        NewArm("spec", ArmKind.CANDIDATE, Level.L1, {}, Effective.from_json({"server_counters": None}), True),
        NewArm("own", ArmKind.CANDIDATE, Level.L4, {}, Effective.from_json({"gamma": 4}), True),
    )
    run = store.begin_run(start(arms=arms))
    for arm in ("spec", "own"):
        store.add_requests(run, [NewRequest(arm, "chat", "c", 0, generation(((4, 2), (2, 2))))])
    with Browser.open(store.url, create=False, read_only=True) as browser:
        spec, own = sorted(
            browser.requests(run, RequestFilter(), 0, back=False, limit=9).requests,
            key=lambda one: one.key.arm != "spec",
        )
        (sums,) = browser.arm_sums(run)
        (trend,) = browser.trend_runs(RunFilter(), 9)
    assert (spec.steps, spec.drafted, spec.accepted) == (None, None, None)
    assert (own.steps, own.drafted, own.accepted) == (2, 6, 4)
    assert (sums.arm, sums.drafted, sums.accepted, sums.output, sums.steps) == ("own", 6, 4, 6, 2)
    assert (trend.ulid, trend.ended, trend.suite, trend.model) == (run, False, "smoke", "big + small")


@pytest.mark.medium
def test_a_runs_version_changes_with_every_addition(store):
    run = fill_finished(store)
    with Browser.open(store.url, create=False, read_only=True) as browser:
        versions = [browser.version_of(run)]
        store.add_check(run, NewCheck("spec", "law", "law", Level.L4, RESULT))
        versions.append(browser.version_of(run))
        store.add_decision(StoredDecision(run, "e" * 64, {}, "allow", (), "ci", datetime.now(UTC)))
        versions.append(browser.version_of(run))
        with pytest.raises(UserError, match="no run"):
            browser.version_of("NONE")
    assert len(set(versions)) == 3


@pytest.mark.parametrize(
    ("arm", "name", "key"),
    [
        ("a/b", "a/b/case#1#2", RequestKey("a/b", "case#1", 2)),
        ("a", "case#0", RequestKey("a", "case", 0)),
        ("a", "a/b", None),
        ("a", "case#-1", None),
        ("a", "case#99999999999999", None),
    ],
)
def test_a_finding_names_a_request(arm, name, key):
    assert request_key(arm, name) == key


@pytest.mark.medium
def test_no_list_scans_the_requests_or_results_of_other_runs(store, monkeypatch):
    run = fill_finished(store)
    asked = []
    with Browser.open(store.url, create=False, read_only=True) as browser:
        event.listen(browser._engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
        browser.runs(FITS["verdict"], "", newer=False, limit=50)
        browser.requests(run, RequestFilter(arm="spec", divergent=True), 1, back=False, limit=50)
        browser.request_places(run)
        browser.arm_sums(run)
        browser.version_of(run)
    with connected(store.url, read_only=True) as connection:
        plans = [row for query, given in asked if query.startswith("SELECT") for row in plan(connection, query, given)]
    scans = {row for row in plans if row.startswith("SCAN")}
    assert plans
    assert scans <= {f"SCAN {name}" for name in ("run", "CONSTANT ROW", "artifact", "run_artifact", "sqlite_master")}


def plan(connection, query, given):
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", given)]
