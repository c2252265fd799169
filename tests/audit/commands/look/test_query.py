from __future__ import annotations

import csv
import io
import itertools
import json
import sqlite3
import time
from dataclasses import replace

import pytest

from audit.store import NewRequest, RunStatus, Store, migrate
from audit.store.asking.queries import NAMED
from audit.store.asking.query_sandbox import QueryLimits, ask
from audit.store.base.values import ArtifactRef
from engine.core.types import SamplingParams
from engine.train.own_draft import emitted
from tests.audit.invoke import invoke
from tests.audit.store.build import fill, fill_finished, generation, start
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]


@pytest.fixture
def url(tmp_path):
    made = str(tmp_path / "audit.db")
    with Store.open(made, create=True) as store:
        fill_finished(store)
    return made


def run(*arguments: str):
    # the tests' server knows no other role
    return invoke("query", *arguments, *(["--superuser"] if "postgresql:" in str(arguments) else []))


def answer(url: str, *arguments: str):
    result = run(*arguments, "--format", "json", "--store", url)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def error(url: str, *arguments: str) -> str:
    result = run(*arguments, "--store", url)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.medium
def test_acceptance_counts_by_arm_and_domain(any_url):
    with Store.open(any_url, create=False) as store:
        fill(store)
        latest = fill(store)
    rows = answer(any_url, "acceptance")
    assert [(row["arm"], row["domain"]) for row in rows] == [
        ("base", "chat"),
        ("base", "code"),
        ("spec", "chat"),
        ("spec", "code"),
    ]
    assert rows[0]["draft_acceptance_rate"] is None
    spec = rows[2]
    assert (spec["n_steps"], spec["n_drafted"], spec["n_accepted"], spec["n_output"]) == (3, 10, 5, 8)
    assert spec["draft_acceptance_rate"] == 0.5
    assert spec["tokens_per_step"] == pytest.approx(8 / 3, abs=1e-15)
    assert answer(any_url, "acceptance", "--param", f"run={latest}") == rows


@pytest.mark.medium
def test_positions_are_unconditional(any_url):
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start())
        # Four drafting steps that keep 4 of 4, 1 of 4, 0 of 2 and 2 of 4, and one without a draft.
        plan = ((4, 4), (4, 1), (2, 0), (4, 2), (0, 0))
        store.add_requests(run, [NewRequest("spec", "chat", "a", 0, generation(plan))])
        store.add_requests(run, [NewRequest("base", "chat", "a", 0, generation(((0, 0),)))])
    rows = answer(any_url, "positions")
    assert [(row["position"], row["drafts"], row["drafted_here"], row["kept"]) for row in rows] == [
        (1, 4, 4, 3),
        (2, 4, 4, 2),
        (3, 4, 3, 1),
        (4, 4, 3, 1),
    ]
    assert [row["rate"] for row in rows] == [0.75, 0.5, 0.25, 0.25]


@pytest.mark.medium
def test_texts_are_the_prompts_and_emitted_tokens_of_a_run_or_of_all_with_its_target(any_url):
    other = replace(start(), artifacts=(ArtifactRef("target", "target", "other", None, "1" * 64, {}),))
    with Store.open(any_url, create=False) as store:
        fill(store)
        store.add_requests(store.begin_run(other), [NewRequest("spec", "chat", "x", 0, generation(((1, 1),)))])
        latest = fill(store)
    rows = answer(any_url, "texts", "--param", f"run={latest}")
    assert [(row["arm"], row["case_id"]) for row in rows] == list(
        itertools.product(("base", "spec"), ("case-a", "case-b"))
    )
    assert json.loads(rows[2]["prompt_ids"]) == [1, 2, 3]
    tokens = tuple(emitted(json.loads(rows[2]["token"]), json.loads(rows[2]["role"])))
    assert tokens == generation(((4, 4), (4, 1), (2, 0)), seed=3).tokens
    every = answer(any_url, "texts", "--param", f"run={latest}", "--param", "all_runs=1")
    assert len(every) == 8
    assert {row["case_id"] for row in every} == {"case-a", "case-b"}


@pytest.mark.medium
def test_divergent_compares_at_the_same_sampling_only(any_url):
    greedy, other = SamplingParams(), SamplingParams(temperature=1.0, seed=7)
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start())
        same = generation(((0, 0),) * 3, seed=1, sampling=greedy)
        store.add_requests(run, [NewRequest("base", "chat", "a", 0, same)])
        store.add_requests(run, [NewRequest("base", "chat", "b", 0, same)])
        store.add_requests(run, [NewRequest("base", "chat", "c", 0, same)])
        store.add_requests(
            run, [NewRequest("spec", "chat", "a", 0, generation(((0, 0),) * 3, seed=1, sampling=greedy))]
        )
        store.add_requests(run, [NewRequest("spec", "chat", "b", 0, generation(((4, 2),), seed=2, sampling=greedy))])
        store.add_requests(run, [NewRequest("spec", "chat", "c", 0, generation(((4, 2),), seed=2, sampling=other))])
    rows = answer(any_url, "divergent")
    assert [(row["arm"], row["baseline"], row["case_id"]) for row in rows] == [("spec", "base", "b")]


@pytest.mark.medium
def test_slow_steps_rejected_and_checks(any_url):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
    slow = answer(any_url, "slow", "--param", "limit=2")
    assert [(row["case_id"], row["latency_us"]) for row in slow] == [("case-b", 1004), ("case-a", 1003)]
    steps = {(row["arm"], row["tokens_in_step"]): row["steps"] for row in answer(any_url, "steps")}
    assert steps == {("base", 1): 8, ("spec", 1): 1, ("spec", 2): 1, ("spec", 3): 1, ("spec", 5): 1}
    assert [row["case_id"] for row in answer(any_url, "rejected")] == ["case-a", "case-b"]
    assert [row["verdict"] for row in answer(any_url, "checks")] == ["fault", "certified"]


@pytest.mark.medium
def test_every_named_query_answers_a_run_without_requests(any_url):
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start())
        store.finish_run(run, RunStatus.FINISHED, 0)
    for name in NAMED:
        assert answer(any_url, name) == []


def test_the_queries_are_listed():
    result = run("--list")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(NAMED)


@pytest.mark.medium
def test_formats_hold_the_same_rows(url):
    rows = answer(url, "slow")
    lines = run("slow", "--format", "jsonl", "--store", url).stdout.splitlines()
    assert [json.loads(line) for line in lines] == rows
    table = list(csv.DictReader(io.StringIO(run("slow", "--format", "csv", "--store", url).stdout)))
    assert [row["case_id"] for row in table] == [row["case_id"] for row in rows]
    plain = run("slow", "--store", url).stdout.splitlines()
    assert plain[0].split() == list(rows[0])
    assert len(plain) == len(rows) + 1


@pytest.mark.medium
def test_own_sql_with_parameters(url):
    sql = "SELECT COUNT(*) AS n FROM v_request WHERE run = :run AND n_output > :least AND domain = :domain"
    arguments = ("--sql", sql, "--param", "run=latest", "--param", "least=4", "--param", "domain=chat")
    assert answer(url, *arguments) == [{"n": 2}]
    assert answer(url, "--sql", "SELECT value FROM json_each('[1, 2]')") == [{"value": 1}, {"value": 2}]
    payload = answer(url, "--sql", "SELECT payload FROM token_trace LIMIT 1")[0]["payload"]
    assert bytes.fromhex(payload).startswith(b"SPECAU")


@pytest.mark.medium
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM request",
        "UPDATE run SET status = 'failed'",
        "INSERT INTO run_event (run_id, status, detail) VALUES (1, 'x', 'y')",
        "DROP TRIGGER guard_request_update",
        "CREATE TEMP TABLE t (x)",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = DELETE",
        "VACUUM",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "SAVEPOINT x",
        "WITH x AS (SELECT 1) DELETE FROM request",
    ],
)
def test_nothing_but_select_runs(url, sql):
    before = dump(url)
    assert "only SELECT can be run" in error(url, "--sql", sql)
    assert dump(url) == before


def dump(path: str) -> list[str]:
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())


@pytest.mark.medium
def test_no_other_file_can_be_attached(url, tmp_path):
    other = tmp_path / "other.db"
    for name in (str(other), f"file:{other}?mode=rwc"):
        assert "only SELECT" in error(url, "--sql", f"ATTACH '{name}' AS other")
    assert not other.exists()


@pytest.mark.medium
def test_two_statements_are_refused(url):
    assert "one statement at a time" in error(url, "--sql", "SELECT 1; DELETE FROM request")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM request",
        "DROP TABLE request CASCADE",
        "SELECT 1; COMMIT; DELETE FROM attachment",
        "COMMIT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; CREATE TABLE x (y int)",
        "CREATE TABLE x (y int)",
        "SELECT setval('request_id_seq', 99)",
    ],
)
def test_postgresql_is_read_only_too(postgres, sql):
    migrate.upgrade(postgres)
    with Store.open(postgres, create=False) as store:
        run_id = fill_finished(store)
        error(postgres, "--sql", sql)
        assert store.verify_root(run_id)
        assert store.damage() == ()
    assert answer(postgres, "--sql", "SELECT COUNT(*) AS n FROM pg_tables WHERE tablename = 'x'") == [{"n": 0}]


def test_a_query_may_leave_no_setting_behind(postgres):
    migrate.upgrade(postgres)
    run("--sql", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "--store", postgres)
    assert "only SELECT can be run" in error(postgres, "--sql", "DELETE FROM request")


ENDLESS = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT COUNT(*) FROM a"


@pytest.mark.medium
def test_a_long_query_is_stopped(any_url):
    began = time.monotonic()
    assert "stopped after 0.2 s" in error(any_url, "--sql", ENDLESS, "--timeout", "0.2")
    assert time.monotonic() - began < 10


@pytest.mark.medium
def test_many_rows_are_cut_and_the_cut_is_told(url):
    sql = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT x FROM a"
    result = run("--sql", sql, "--limit", "3", "--format", "jsonl", "--store", url)
    assert [json.loads(line)["x"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert "only the first 3 rows" in result.stderr
    exact = ask(url, "SELECT 1 UNION SELECT 2", {}, QueryLimits(5, 2))
    assert not exact.cut


@pytest.mark.medium
def test_mistakes_are_one_clear_line(url):
    assert "did you mean 'positions'?" in error(url, "position")
    assert "see: audit query --list" in error(url)
    assert "give either the name of a query or --sql" in error(url, "slow", "--sql", "SELECT 1")
    assert "has no parameter 'cap'; it has: limit, run" in error(url, "slow", "--param", "cap=1")
    assert "write NAME=VALUE" in error(url, "slow", "--param", "limit")
    assert "no run begins with 'nope'" in error(url, "slow", "--param", "run=nope")
    assert "give --param x=VALUE" in error(url, "--sql", "SELECT :x")
    assert "leave out --param y=" in error(url, "--sql", "SELECT 1", "--param", "y=1")
    assert 'near "selec"' in error(url, "--sql", "selec")
    assert "no such table: theirs" in error(url, "--sql", "SELECT * FROM theirs")
    assert "returns no rows" in error(url, "--sql", "-- only a comment")
    assert "returns no rows" in error(url, "--sql", "")
