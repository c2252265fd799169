from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from audit.errors import CannotDecide, UserError
from audit.store import NewRequest, Store, default_url, migrate
from audit.store.base import connection as engines
from audit.store.base.connection import open_engine, parse_url, readonly_uri, shown
from audit.store.health import UNLOGGED
from audit.store.tables.runs import APPEND_ONLY, REVISION, Base
from tests.audit.store.build import connected, fill_every_table, fill_finished, generation, made_store, start


def test_default_is_in_the_data_folder_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv("AUDIT_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/specaudit/audit.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_url() == f"sqlite:///{Path.home()}/.local/share/specaudit/audit.db"
    monkeypatch.setenv("AUDIT_STORE", "postgresql://h/d")
    assert default_url() == "postgresql://h/d"


@pytest.mark.medium
@pytest.mark.parametrize("name", ["a.db", "odd %name?.db", "sp ace#.db"])
def test_a_plain_path_is_a_store_whatever_its_name(tmp_path, name):
    path = tmp_path / "made" / "folders" / name
    with Store.open(str(path), create=True) as store:
        run = fill_finished(store)
    with Store.open(str(path), create=False, read_only=True) as store:
        assert store.verify_root(run)
    assert path.is_file()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory would be lost"),
        ("sqlite:///:memory:", "in memory would be lost"),
        ("", "--store is empty"),
        ("://x", "not a store URL"),
        ("nosuchdb://x/y", "no such kind of database"),
        ("mysql+pymysql://x/y", "driver is missing"),
        ("postgresql://u:secret@127.0.0.1:1/d", "cannot be read as a store"),
    ],
)
def test_unusable_urls_are_one_clear_line(url, message):
    with pytest.raises(UserError, match=message) as caught:
        Store.open(url, create=True)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_passwords_are_hidden():
    assert shown(parse_url("postgres://u:secret@h/d")) == "postgresql+psycopg://u:***@h/d"


def test_a_missing_store_is_not_made_for_a_reader(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(UserError, match="no such store"):
        Store.open(str(path), create=False)
    with pytest.raises(UserError, match="no such store"):
        Store.open(str(path), create=True, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused_and_left_alone(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database at all, but long enough to look like one " * 20)
    before = notes.read_bytes()
    for create in (True, False):
        with pytest.raises(UserError, match=r"notes\.txt: cannot be read as a store: file is not a database"):
            Store.open(str(notes), create=create)
    with pytest.raises(UserError, match=r"cannot be upgraded: file is not a database"):
        migrate.upgrade(str(notes))
    assert notes.read_bytes() == before
    with pytest.raises(UserError, match="no such store"):
        Store.open(str(tmp_path), create=False)
    with pytest.raises(UserError, match="cannot be"):
        Store.open(str(tmp_path), create=True)


def test_a_foreign_database_is_refused(tmp_path):
    path = tmp_path / "their.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    for attempt in (lambda: Store.open(str(path), create=True), lambda: migrate.upgrade(str(path))):
        with pytest.raises(UserError, match="a database, but not an audit store"):
            attempt()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


@pytest.mark.medium
def test_an_empty_file_becomes_a_store_only_on_create(tmp_path):
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(UserError, match="run: audit db upgrade"):
        Store.open(str(path), create=False)
    with Store.open(str(path), create=True) as store:
        assert store.list_runs(1) == ()


@pytest.mark.medium
@pytest.mark.parametrize("revision", ["0000", "0016", "9999"])
def test_a_store_of_another_revision_is_refused_by_everything(tmp_path, revision):
    url = made_store(tmp_path)
    with connected(url) as connection, connection.begin():
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    for attempt in (lambda: Store.open(url, create=True), lambda: migrate.upgrade(url)):
        with pytest.raises(
            UserError, match=f"has revision {revision}, .* reads {REVISION}: .* name a new store"
        ) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert migrate.current(url) == revision


@pytest.mark.medium
def test_a_store_with_two_revisions_is_refused_in_one_line(tmp_path):
    url = made_store(tmp_path)
    with connected(url) as connection, connection.begin():
        connection.execute(text("INSERT INTO alembic_version VALUES ('9999')"))
    for attempt in (lambda: Store.open(url, create=True), lambda: migrate.upgrade(url)):
        with pytest.raises(UserError, match=f"has revision {REVISION} and 9999, .* name a new store"):
            attempt()


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_a_new_store_is_its_owners_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with Store.open(str(tmp_path / "new.db"), create=True):
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes


def test_the_first_tables_of_a_development_version_are_no_store_of_this_revision(tmp_path):
    """They had the number of the revision that makes all tables today."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE run (id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    with pytest.raises(UserError, match=r"has revision 0001 without a log, .* name a new store"):
        Store.open(str(path), create=True)


def test_an_empty_postgresql_database_must_be_upgraded_by_hand(postgres):
    with pytest.raises(UserError, match=r"is at revision empty, .* run: audit db upgrade"):
        Store.open(postgres, create=True)
    migrate.upgrade(postgres)
    with Store.open(postgres, create=False) as store:
        assert store.list_runs(1) == ()


@pytest.mark.medium
def test_writers_have_the_settings_that_keep_evidence(tmp_path):
    with connected(made_store(tmp_path)) as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
        assert connection.exec_driver_sql("PRAGMA recursive_triggers").scalar_one() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == engines.STEP_MS


@pytest.mark.medium
def test_a_reader_cannot_write(tmp_path):
    with connected(made_store(tmp_path), read_only=True) as connection:
        for statement in (
            "DELETE FROM request",
            "CREATE TABLE x (y)",
            "INSERT INTO run_event VALUES (9,1,'a','b','c')",
        ):
            with pytest.raises(OperationalError, match="readonly database"):
                connection.exec_driver_sql(statement)


def test_a_read_only_store_refuses_to_write(any_url):
    with Store.open(any_url, create=False, read_only=True) as store, pytest.raises(CannotDecide, match=r"read-?only"):
        store.begin_run(start())


def test_a_store_in_a_frozen_folder_is_immutable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert readonly_uri(tmp_path / "a b.db").endswith("/a%20b.db?mode=ro&immutable=1")
    (tmp_path / "a b.db-wal").touch()
    assert readonly_uri(tmp_path / "a b.db").endswith("?mode=ro")


@pytest.mark.medium
def test_a_reader_does_not_wait_for_a_writer_and_a_writer_gives_up_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "BUSY_MS", 50)
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store, connected(url) as connection, connection.begin():
        assert len(store.list_runs(5)) == 1
        with pytest.raises(CannotDecide, match="database is locked"):
            store.begin_run(start())


def test_switching_to_the_write_ahead_log_waits_for_a_lock(tmp_path):
    """SQLite itself refuses at once while another connection is about to write."""
    path = tmp_path / "new.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=60).execute("PRAGMA journal_mode = WAL")
    threading.Timer(0.4, holder.rollback).start()
    with open_engine(parse_url(str(path))).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


WRITER = """
import sys
import threading
from audit.store import NewRequest, Store
from tests.audit.store.build import fill_every_table, generation, start
with Store.open(sys.argv[1], create=True) as store:
    run = store.begin_run(start())
    for sample in range(5):
        store.add_requests(run, [NewRequest("spec", "chat", "a", sample, generation(((2, 1),), seed=sample))])
"""


@pytest.mark.slow
def test_processes_may_make_and_write_one_store_together(tmp_path):
    url = str(tmp_path / "shared.db")
    writers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, url], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    problems = [writer.communicate(timeout=60)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], problems
    with Store.open(url, create=False) as store:
        assert [run.requests for run in store.list_runs(5)] == [5, 5]
        assert store.damage() == ()


def rows_before(connection):
    counts = {}
    for table in (*APPEND_ONLY, "run"):
        counts[table] = connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one()
    return counts


@pytest.mark.medium
def test_no_row_can_be_changed_in_either_database(any_url):
    fill_every_table(any_url)
    with connected(any_url) as connection:
        postgresql = connection.dialect.name == "postgresql"
        before = rows_before(connection)
        connection.rollback()
        assert min(before.values()) > 0
        for table in APPEND_ONLY:
            column = next(iter(Base.metadata.tables[table].columns)).name
            attempts = [f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"]
            attempts += [f"TRUNCATE {table} CASCADE"] if postgresql else [f"REPLACE INTO {table} SELECT * FROM {table}"]
            for attempt in attempts:
                refused(connection, attempt)
        assert rows_before(connection) == before


def refused(connection, statement):
    from sqlalchemy.exc import IntegrityError

    with pytest.raises(IntegrityError, match="append-only"):
        connection.execute(text(statement))
    connection.rollback()


@pytest.mark.medium
def test_of_a_run_only_its_progress_can_be_changed(any_url):
    fill_every_table(any_url)
    with connected(any_url) as connection:
        for column in Base.metadata.tables["run"].columns:
            statement = f"UPDATE run SET {column.name} = {column.name}"
            if column.name in {"status", "finished_at", "record_root", "content_root", "tokens", "exit_code"}:
                connection.execute(text(statement))
            else:
                refused(connection, statement)
        refused(connection, "DELETE FROM run")


@pytest.mark.medium
def test_every_table_is_guarded_and_a_lost_guard_is_damage(any_url):
    tables = set(Base.metadata.tables)
    # the sums go when their run goes on, and `audit db check` makes them again
    assert tables == {*APPEND_ONLY, "run", "run_sums"}
    fill_every_table(any_url)
    with Store.open(any_url, create=False) as store:
        assert store.damage() == ()
    with connected(any_url) as connection, connection.begin():
        on = " ON request" if connection.dialect.name == "postgresql" else ""
        connection.execute(text(f"DROP TRIGGER guard_request_update{on}"))
    with Store.open(any_url, create=False) as store:
        assert [broken.place for broken in store.damage()] == ["guard_request_update"]


NO_GUARDS = {
    "sqlite": (
        "DROP TRIGGER guard_arm_delete",
        "CREATE TRIGGER guard_arm_delete BEFORE DELETE ON arm FOR EACH ROW BEGIN SELECT 1; END",
        "CREATE TRIGGER helper AFTER INSERT ON arm BEGIN SELECT 1; END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        "CREATE TRIGGER helper AFTER INSERT ON arm FOR EACH ROW EXECUTE FUNCTION audit_refuse()",
    ),
}


def test_a_guard_that_does_nothing_is_damage(any_url):
    with connected(any_url) as connection, connection.begin():
        for statement in NO_GUARDS[connection.dialect.name]:
            connection.execute(text(statement))
    with Store.open(any_url, create=False) as store:
        found = {broken.place: broken.message for broken in store.damage()}
    assert found["guard_arm_delete"] == "the append-only trigger was altered"
    assert found["helper"] == "the trigger does not belong to the store"


@pytest.mark.medium
def test_dangling_rows_and_damaged_pages_are_found(tmp_path):
    url = made_store(tmp_path)
    path = tmp_path / "audit.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO run_event (run_id, status, at, detail) VALUES (99, 'running', '2026-01-01', '')"
        )
    with Store.open(url, create=False) as store:
        assert [broken.message for broken in store.damage()] == ["refers to a row of run that does not exist", UNLOGGED]
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = bytearray(path.read_bytes())
    for page in range(1, len(damaged) // 4096):
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(damaged)
    with pytest.raises((CannotDecide, UserError)) as caught, Store.open(url, create=False) as store:
        store.load_run(store.resolve("latest"))
    assert "\n" not in str(caught.value)


@pytest.mark.medium
def test_a_crash_between_two_requests_keeps_the_first(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run = store.begin_run(start())
        store.add_requests(run, [NewRequest("spec", "chat", "a", 0, generation(((1, 0),)))])
        # No finish and no close: what is on disk now is what a crash leaves.
        with Store.open(url, create=False) as after:
            assert [key.case_id for key in after.finished(run)] == ["a"]


@pytest.mark.medium
def test_a_power_cut_takes_back_no_commit(tmp_path):
    url = str(tmp_path / "audit.db")
    migrate.upgrade(url)
    engine = open_engine(parse_url(url))
    with engine.connect() as connection:
        full = 2
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == full
    engine.dispose()
