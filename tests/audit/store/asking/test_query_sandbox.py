"""Queries that mean harm, or take too long: each ends in time with one line, and reaches the store's tables only."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from audit.errors import UserError
from audit.store import Store
from audit.store.asking.query_sandbox import QueryLimits, QueryResult, ask
from tests.audit.invoke import invoke

ENDLESS = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT COUNT(*) FROM a"
DOUBLING = "WITH RECURSIVE a(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM a)"
LONG = "replace(hex(zeroblob({})), '0', 'a')"


@pytest.fixture
def url(tmp_path):
    path = str(tmp_path / "audit.db")
    Store.open(path, create=True).close()
    return path


def refusal(url: str, sql: str, *more: str) -> str:
    result = invoke("query", "--sql", sql, "--store", url, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr.splitlines()[-1]


def as_superuser(url: str, sql: str, timeout_s: float = 10) -> QueryResult:
    return ask(url, sql, {}, QueryLimits(timeout_s, 10, superuser=True))


@pytest.mark.medium
@pytest.mark.parametrize("timeout", ["nan", "inf", "-inf", "0", "-1"])
def test_a_timeout_that_is_no_time_is_refused(url, timeout):
    assert "--timeout" in refusal(url, ENDLESS, "--timeout", timeout)


@pytest.mark.medium
@pytest.mark.parametrize("limit", ["0", "1" + "0" * 30])
def test_a_limit_that_no_list_has_is_refused(url, limit):
    assert "--limit" in refusal(url, "SELECT 1", "--limit", limit)


@pytest.mark.medium
@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT instr({LONG.format(4_000_000)}, {LONG.format(2_000_000)} || 'b')",
        f"{DOUBLING} SELECT x FROM a",
        f"{DOUBLING} SELECT length(x) FROM a",
        "SELECT zeroblob(900000000), zeroblob(900000000)",
        f"SELECT {', '.join(['zeroblob(1000000)'] * 900)}",
        "SELECT printf('%.*c', 2000000000, 'x')",
    ],
    ids=["instr", "strings that double", "their lengths", "two large blobs", "a wide row", "a long print"],
)
def test_no_single_instruction_outlasts_the_timeout_or_the_memory(url, sql):
    began = time.monotonic()
    line = refusal(url, sql, "--timeout", "1")
    assert time.monotonic() - began < 6
    assert any(words in line for words in ("stopped after 1 s", "of memory", "MiB; select less", "too big")), line


def test_a_query_that_ends_its_process_is_one_line(url, monkeypatch):
    monkeypatch.setattr("audit.store.asking.query_worker.__file__", os.devnull)
    with pytest.raises(UserError, match="ended the process that ran it"):
        ask(url, "SELECT 1", {}, QueryLimits(5, 1))


@pytest.mark.medium
def test_every_kind_of_value_comes_back(url):
    sql = "SELECT 1 AS a, 0.5 AS b, 'ä' AS c, x'00ff' AS d, NULL AS e, 9e999 AS f, :g AS g, :g AS h"
    row = (1, 0.5, "ä", b"\x00\xff", None, float("inf"), 2**62, 2**62)
    assert ask(url, sql, {"g": 2**62}, QueryLimits(5, 1)) == QueryResult(tuple("abcdefgh"), (row,), cut=False)


def test_a_timeout_below_a_millisecond_is_one(postgres):
    began = time.monotonic()
    with pytest.raises(UserError, match=r"stopped after 0\.0001 s"):
        as_superuser(postgres, ENDLESS, 0.0001)
    assert time.monotonic() - began < 10


def test_a_superuser_asks_only_if_the_flag_says_so(postgres):
    with pytest.raises(UserError, match=r"opened as a superuser.* or add --superuser"):
        ask(postgres, "SELECT 1 AS n", {}, QueryLimits(5, 1))
    assert as_superuser(postgres, "SELECT 1 AS n").rows == ((1,),)


def test_another_role_asks_without_the_flag(postgres):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN")
    theirs = postgres.replace("postgres@", "reader@")
    found = ask(theirs, "SELECT current_user AS me UNION ALL SELECT 'you'", {}, QueryLimits(5, 1))
    assert found == QueryResult(("me",), (("reader",),), cut=True)


HARM = [
    "COPY (SELECT 1) TO PROGRAM 'touch {proof}'",
    "COPY (SELECT 1) TO '{proof}'",
    "COPY (SELECT 1) TO STDOUT",
    "DO $$ BEGIN EXECUTE 'COPY (SELECT 1) TO ''{proof}'''; END $$",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT \"pg_read_file\"('/etc/passwd')",
    "SELECT pg_catalog.pg_read_file /* */ ('/etc/passwd')",
    "SELECT * FROM pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(1, '{proof}')",
    "SELECT pg_create_physical_replication_slot('x')",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT query_to_xml('COPY (SELECT 1) TO ''{proof}''', true, true, '')",
    "SELECT U&\"pg_read\\005ffile\"('/etc/passwd')",
    "SELECT pg_terminate_backend(1)",
    "WITH x AS (DELETE FROM pg_class RETURNING 1) SELECT * FROM x",
    "SELECT 1 INTO other",
    "SELECT 1; COPY (SELECT 1) TO '{proof}'",
    "EXPLAIN ANALYZE DELETE FROM pg_class",
    "LOCK TABLE pg_class",
    "LISTEN x",
]


def test_even_a_superuser_reaches_no_file_no_program_and_no_setting(postgres, tmp_path):
    tmp_path.chmod(0o777)
    lines = {}
    for sql in HARM:
        with pytest.raises(UserError) as caught:
            as_superuser(postgres, sql.replace("{proof}", str(tmp_path / "proof")))
        lines[sql] = str(caught.value)
    words = ("only SELECT can be run", "a query may not use")
    assert {sql: line for sql, line in lines.items() if not line.startswith(words)} == {}
    assert not any("\n" in line for line in lines.values())
    assert not (tmp_path / "proof").exists()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT COUNT(*) FROM pg_replication_slots").fetchone() == (0,)


def test_a_server_that_no_longer_answers_ends_with_the_timeout(postgres, cluster):
    """The server's process for this connection is halted, so that only the client can end the query."""
    server = int(Path(cluster, "data", "postmaster.pid").read_text().splitlines()[0])
    before = set(children(server))
    with ThreadPoolExecutor() as pool:
        began = time.monotonic()
        asked = pool.submit(as_superuser, postgres, "SELECT pg_sleep(30)", 1.5)
        time.sleep(0.7)
        halted = [pid for pid in children(server) if pid not in before]
        assert halted
        for pid in halted:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(UserError, match=r"stopped after 1\.5 s"):
                asked.result(timeout=20)
        finally:
            for pid in halted:
                os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < 10


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
