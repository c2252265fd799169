"""Content apart from the evidence: commitments, erasures on record, and stores from before there were any."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import sqlite3

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from audit.errors import CannotDecide
from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.store import NewCheck, Store, migrate
from audit.store.tables.runs import TOKEN_COLUMNS
from tests.audit.store.build import connected, fill_finished, made_store, start
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.stores import sql, tamper

__all__ = ["any_url", "cluster", "postgres"]


def erase(url, request, *, reason="asked for", run=1, tables=("content", "request_tokens", "token_trace")):
    """Erase one request's content, as the triggers allow it."""
    with connected(url) as connection, connection.begin():
        columns = "run_id, request_id, what, reason, actor, created_at"
        values = {"run": run, "request": request, "reason": reason}
        row = "(:run, :request, 'content', :reason, 'ci', '2026-01-01')"
        connection.execute(text(f"INSERT INTO erasure ({columns}) VALUES {row}"), values)
        for table in tables:
            connection.execute(text(f"DELETE FROM {table} WHERE request_id = {request}"))


def places(url):
    with Store.open(url, create=False) as store:
        return {(broken.place, broken.message) for broken in store.broken_places(store.resolve("latest"))}


def keyed(salt, kind, content):
    return hmac.new(salt, kind + b"\x00" + content, hashlib.sha256).hexdigest()


@pytest.mark.medium
def test_the_commitments_are_hmacs_of_the_documented_bytes(store, run):
    ((salt, ids, output, words),) = sql(
        store, "SELECT salt, prompt_ids, output_sha256, text FROM content WHERE request_id = 3"
    )
    ((trace,),) = sql(store, "SELECT sha256 FROM token_trace WHERE request_id = 3")
    (columns,) = sql(store, f"SELECT {', '.join(TOKEN_COLUMNS)} FROM request_tokens WHERE request_id = 3")
    packed = b"".join(b"-1:" if each is None else b"%d:" % len(each) + each.encode() for each in columns)
    names = "prompt_commitment, output_commitment, trace_commitment, tokens_commitment, record_version"
    (found,) = sql(store, f"SELECT {names} FROM request WHERE id = 3")
    prompt = b"".join(token.to_bytes(8, "little") for token in json.loads(ids))
    answer = json.dumps([output, words], separators=(",", ":")).encode()
    parts = {b"prompt": prompt, b"output": answer, b"trace": trace.encode(), b"tokens": packed}
    wanted = [keyed(salt, *part) for part in parts.items()]
    assert (len(salt), json.loads(ids), found) == (16, [1, 2, 3], (*wanted, 1))


@pytest.mark.medium
def test_every_salt_is_fresh(store):
    fill_finished(store)
    fill_finished(store)
    salts = [row[0] for row in sql(store, "SELECT salt FROM content UNION ALL SELECT salt FROM finding")]
    assert len(set(salts)) == len(salts) == 12


def test_no_unsalted_trace_of_the_content_stays_in_the_evidence(store, run):
    """What an erasure leaves holds neither the content nor a digest that a guess could be compared with."""
    digests = set(sum(sql(store, "SELECT prompt_sha256, output_sha256 FROM content"), ()))
    digests |= {row[0] for row in sql(store, "SELECT sha256 FROM token_trace")}
    kept = sql(store, "SELECT * FROM request") + sql(store, "SELECT * FROM decode_step")
    assert not digests & {value for row in kept for value in row}
    assert "text" not in {value for row in kept for value in row}


@pytest.mark.medium
@pytest.mark.parametrize("erased", [pick for n in range(5) for pick in itertools.combinations((1, 2, 3, 4), n)])
def test_any_requests_may_be_erased_and_every_hash_holds(tmp_path, erased):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        root = store.load_run(store.resolve("latest")).record_root
    for request in erased:
        erase(url, request)
    with Store.open(url, create=False) as store:
        run = store.resolve("latest")
        assert store.verify_root(run)
        assert store.load_run(run).record_root == root
        for arm, requests in (("base", {1, 2}), ("spec", {3, 4})):
            if requests & set(erased):
                with pytest.raises(CannotDecide, match=r"the content was erased on 2026-01-01 \(asked for\)"):
                    store.load_arm(run, arm)
            else:
                assert len(store.load_arm(run, arm).requests) == 2


@pytest.mark.medium
@pytest.mark.parametrize("commitment", [f"{part}_commitment" for part in ("prompt", "output", "trace", "tokens")])
def test_other_changes_are_still_found_after_an_erasure(tmp_path, commitment):
    url = made_store(tmp_path)
    erase(url, 3)
    with Store.open(url, create=False) as store:
        tamper(store, "request", f"{commitment} = '{'0' * 64}'", "id = 3")
    assert places(url) == {("spec/case-a#0", "the request's row, steps or trace digest were changed")}
    erase(url, 4, tables=("content",))
    assert ("spec/case-b#0", "its erasure is on record, but its content is still there") in places(url)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ("content", "text = text || '.'", "the commitment contradicts its output"),
        ("content", f"output_sha256 = '{'0' * 64}'", "the commitment contradicts its output"),
        ("content", "prompt_ids = '[1,2,4]'", "its prompt was changed"),
        ("content", f"prompt_sha256 = '{'0' * 64}'", "its prompt was changed"),
        ("content", "salt = zeroblob(16)", "its salt was changed"),
        ("content", "salt = NULL", "its salt or prompt is missing"),
        ("request_tokens", "token = replace(token, '[', '[ ')", "the commitment contradicts its tokens"),
        ("request_tokens", "parent = '[]'", "the commitment contradicts its tokens"),
        ("token_trace", f"sha256 = '{'0' * 64}'", "its trace was changed"),
        ("token_trace", "payload = x'00'", "its trace was changed"),
    ],
)
def test_a_changed_content_is_named(tmp_path, change, where, message):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        tamper(store, change, where, "request_id = 3")
    assert places(url) == {("spec/case-a#0", message)}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("table", "part"), [("content", "content"), ("token_trace", "trace"), ("request_tokens", "tokens")]
)
def test_content_that_is_missing_without_an_erasure_is_damage(tmp_path, table, part):
    url = made_store(tmp_path)
    with sqlite3.connect(tmp_path / "audit.db") as connection:
        connection.execute(f"DROP TRIGGER guard_{table}_delete")
        connection.execute(f"DELETE FROM {table} WHERE request_id = 3")
    are, them = ("are", "them") if part == "tokens" else ("is", "it")
    assert places(url) == {("spec/case-a#0", f"its {part} {are} missing, and no erasure names {them}")}


@pytest.mark.medium
def test_an_erasure_must_give_a_reason_and_name_its_own_run(tmp_path):
    url = made_store(tmp_path)
    with pytest.raises(IntegrityError, match="CHECK constraint"):
        erase(url, 3, reason=" ")
    with sqlite3.connect(tmp_path / "audit.db") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            "INSERT INTO erasure (run_id, request_id, what, reason, actor, created_at)"
            " VALUES (1, 3, 'content', '', 'x', '2026-01-01')"
        )
        connection.execute("DELETE FROM content WHERE request_id = 3")
    with Store.open(url, create=False) as store:
        other = store.begin_run(start())
        assert other == store.resolve("latest")
        assert [each.message for each in store.broken_places(store.list_runs(2)[1].ulid)] == [
            "its erasure gives no reason"
        ]
    erase(url, 4, run=2)
    with Store.open(url, create=False) as store:
        messages = [each.message for each in store.broken_places(store.list_runs(2)[1].ulid)]
    assert messages == ["its erasure gives no reason", "its erasure names another run"]


@pytest.mark.medium
def test_only_erasable_rows_that_an_erasure_names_can_be_deleted(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
    erase(any_url, 3)
    attempts = ["DELETE FROM content WHERE request_id = 4", "DELETE FROM token_trace", "DELETE FROM finding"]
    attempts += ["DELETE FROM request_tokens", "UPDATE request_tokens SET role = ''"]
    attempts += ["DELETE FROM erasure", "DELETE FROM request WHERE id = 3", "UPDATE content SET text = ''"]
    with connected(any_url) as connection:
        for attempt in attempts:
            with pytest.raises(IntegrityError, match="append-only"):
                connection.execute(text(attempt))
            connection.rollback()
    with Store.open(any_url, create=False) as store:
        assert store.verify_root(run)


@pytest.mark.medium
def test_findings_and_summaries_that_quote_them_live_apart(any_url):
    quoted = Finding("case-a#0", 3, "'the secret' is not the baseline's")
    result = CheckResult(Verdict.FAULT, f"1 request differs; first: {quoted.message}", n=1, findings=(quoted,))
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        store.add_check(run, NewCheck("spec", "text", "text", Level.L4, result))
        (found,) = [check for check in store.checks(run) if check.check == "text"]
        assert (found.summary, found.findings, found.erased) == (result.summary, (quoted,), 0)
    with connected(any_url) as connection, connection.begin():
        query = "SELECT id, summary, n_findings FROM check_result WHERE name = 'text'"
        ((row, summary, count),) = connection.execute(text(query)).all()
        assert (summary, count) == ("1 request differs; first: (see the findings)", 1)
        columns = "run_id, check_result_id, what, reason, actor, created_at"
        values = f"1, {row}, 'finding', 'asked for', 'ci', '2026-01-01'"
        connection.execute(text(f"INSERT INTO erasure ({columns}) VALUES ({values})"))
        connection.execute(text(f"DELETE FROM finding WHERE check_result_id = {row}"))
    with Store.open(any_url, create=False) as store:
        assert store.verify_root(run)
        (found,) = [check for check in store.checks(run) if check.check == "text"]
        assert (found.summary, found.findings, found.erased) == (summary, (), 1)


@pytest.mark.medium
def test_a_changed_or_missing_finding_is_named(tmp_path):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        tamper(store, "finding", "findings = replace(findings, 'differs', 'is fine')", "check_result_id = 1")
    assert places(url) == {("spec replay", "its findings differ from the commitment")}
    with sqlite3.connect(tmp_path / "audit.db") as connection:
        connection.execute("DROP TRIGGER guard_finding_delete")
        connection.execute("DELETE FROM finding")
    missing = "its findings are missing, and no erasure names them"
    assert places(url) == {("spec replay", missing), ("spec law", missing)}


def command_to(url, change, revision):
    with connected(url) as connection:
        change(migrate.config(connection), revision)
        connection.commit()
