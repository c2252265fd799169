"""A stored run judged again: from the store alone, beside the first verdicts, and never with another meaning."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.runs import reading_helpers
from audit.runs.arms import plan_arms
from audit.runs.interim_looks import RunStopRule
from audit.runs.prepare import prepare
from audit.runs.recorded_arms import recorded_arms
from audit.runs.rejudge import judge_again
from audit.runs.runner import run
from audit.store import RunStatus, Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.round_suites import ROUND, suite_file

MORE = ", replay: {}, seed: {}, coupled_equality: {}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of a broken engine, whose suite is gone."""
    folder = tmp_path_factory.mktemp("rejudge")
    path, url = suite_file(folder, fault="sqrt_acceptance", more=MORE), str(folder / "audit.db")
    with Store.open(url, create=True) as store:
        suite = load_suite(path)
        outcome = run(prepare(suite), store, Quiet())
        stored = store.load_run(outcome.run)
    path.unlink()
    (folder / "prompts.jsonl").unlink()
    return url, outcome.run, suite, stored


@pytest.fixture
def copied(made, tmp_path):
    """The store as a file of the test's own."""
    target = tmp_path / "audit.db"
    with closing(sqlite3.connect(made[0])) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return str(target)


def changed(url, statement):
    """What the owner of a file can do to it."""
    with closing(sqlite3.connect(url)) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)


@pytest.mark.medium
def test_helpers_read_a_store_s_arms(copied, monkeypatch):
    begun = []
    pool = reading_helpers.ProcessPoolExecutor
    monkeypatch.setattr(
        reading_helpers, "ProcessPoolExecutor", lambda *given, **named: begun.append(pool(*given, **named)) or begun[-1]
    )
    monkeypatch.setattr(reading_helpers, "processors", lambda: 2)
    monkeypatch.setattr(reading_helpers, "MANY_TOKENS", 1)
    monkeypatch.setattr(reading_helpers, "AHEAD", 100)
    monkeypatch.setattr(reading_helpers, "_is_large", lambda arm, least: True)
    monkeypatch.setattr(reading_helpers, "_read", lambda *_: pytest.fail("a request was read here"))
    result = invoke("judge", "--store", copied)
    assert result.exit_code == 0, result.output
    assert "4 of 4 results are as before" in result.stdout
    assert len(begun) == 1


@pytest.mark.medium
def test_the_verdicts_are_the_same_and_stand_beside_the_first(copied, made):
    result = invoke("judge", "--store", copied)
    assert result.exit_code == 0, result.output
    assert f"4 of 4 results are as before; run {made[1]}" in result.stdout
    with Store.open(copied, create=False) as store:
        (judgement,) = store.judgements(made[1])
        assert (judgement.number, bool(judgement.packages)) == (1, True)
        assert len(store.checks(made[1])) == 4
        assert store.broken_places(made[1]) == ()
    assert "judged again: by " in invoke("show", "--store", copied).stdout
    with closing(sqlite3.connect(copied)) as connection:
        rows = connection.execute("SELECT name, COUNT(*), COUNT(judgement_id) FROM check_result GROUP BY name")
        assert {row[1:] for row in rows} == {(2, 1)}


@pytest.mark.medium
def test_a_verdict_that_was_edited_comes_out(copied):
    changed(copied, "UPDATE check_result SET verdict = 'certified', bound = 0.25 WHERE name = 'replay'")
    result = invoke("judge", "--store", copied)
    assert result.exit_code == 1
    assert "3 of 4 results are as before" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("chain")]
    assert "replay" in line
    assert "verdict certified -> fault" in line
    assert "bound 0.25 -> 0.06" in line
    assert invoke("judge", "--store", copied).exit_code == 0, "the last judgement is compared"


def test_the_arms_on_record_are_those_that_were_planned(made):
    _, _, suite, stored = made
    found = recorded_arms(stored, ())
    planned = plan_arms(suite)
    assert found.links == tuple(arm.links for arm in planned)
    assert {name: dict(each.checks) for name, each in found.checks.items()} == {
        arm.name: {check: dict(given) for check, given in arm.spec.checks.items()} for arm in planned if arm.spec
    }
    assert {each.coverage for each in found.checks.values()} == {suite.arms[0].coverage}
    assert found.unknown == ()


@pytest.mark.medium
def test_what_this_version_does_not_know_is_named_and_left_alone(copied, made):
    changed(copied, 'UPDATE arm SET spec = replace(spec, \'"replay": {}\', \'"gone": {}, "seed": {"old": 1}\')')
    result = invoke("judge", "--store", copied)
    assert "chain: this version has no check gone; its result stays" in result.stderr
    with Store.open(copied, create=False) as store:
        assert {each.check for each in store.checks(made[1])} >= {"replay", "seed"}


@pytest.mark.medium
def test_a_run_with_looks_is_judged_at_the_share_of_its_last_one(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        path = suite_file(tmp_path, margin=0.1, more=", accounting: {}")
        name = run(prepare(load_suite(path)), store, Quiet(), RunStopRule(100 * ROUND)).run
        last = max(each.details["look"]["number"] for each in store.checks(name))
        found = judge_again(store, name, lambda _arm: None)
        assert not any(each.verdict for each in found.differences)
        assert {each.details["look"]["number"] for each in store.checks(name)} == {last}
        assert {each.verdict for each in store.checks(name)} == {Verdict.CERTIFIED}


def test_a_run_that_is_not_finished_is_refused(copied, made):
    with Store.open(copied, create=False) as store:
        store.set_status(made[1], RunStatus.INTERRUPTED, "stopped by the user")
    result = invoke("judge", "--store", copied)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"audit: run {made[1]} is interrupted; only a finished run can be judged again\n"
