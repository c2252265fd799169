"""Every kind of tampering with a store, by someone who can write to the database, is found and named."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from audit.store import Store, health, migrate
from audit.store.health import DELETED, EDITED, UNLOGGED
from audit.store.ledger.coverage import DERIVED, ELSEWHERE
from audit.store.ledger.log_scan import MISFIT
from audit.store.tables.runs import Base
from tests.audit.gate.attacks.honest import SUITE, ran
from tests.audit.store.build import connected, fill_every_table
from tests.audit.store.owner import Tampered, tamper


@pytest.fixture
def url(any_url):
    fill_every_table(any_url)
    return any_url


def damage(url):
    with Store.open(url, create=False) as store:
        return [f"{broken.place}: {broken.message}" for broken in (*store.damage(), *store.damaged_views())]


def first(url, kind="log entry"):
    """The first line about the log or about kept sums."""
    return next(line for line in damage(url) if kind in line or UNLOGGED in line or "log" in line or "sums" in line)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE check_result SET verdict = 'certified' WHERE id = 2", f"check_result 2: {EDITED}"),
        ("UPDATE gate_decision SET decision = 'block'", f"gate_decision 1: {EDITED}"),
        ("UPDATE coverage SET examined = 99 WHERE check_result_id = 1 AND situation = 'near_tie'", EDITED),
        ("UPDATE run SET exit_code = 0", "run 1: its state was edited: exit_code was 1, is 0"),
        ("DELETE FROM attachment", f"attachment 1: {DELETED}"),
        ("DELETE FROM run_sums", "its kept sums were deleted"),
        ("DELETE FROM log_entry WHERE seq = 7", "log entry 7: the entry was deleted"),
        ("DELETE FROM log_entry WHERE seq > 6 AND seq < 10", "log entry 7: entries 7 to 9 were deleted"),
        ("UPDATE log_entry SET seq = -1 WHERE seq = 4", "an entry with the number -1 was inserted"),
        ("UPDATE log_entry SET text = '[]' WHERE kind = 'state'", "the text of the entry was edited"),
    ],
)
def test_a_statement_is_named(url, statement, message):
    assert damage(url) == []
    tamper(url, statement)
    assert message in first(url)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (("DROP VIEW v_gate",), "v_gate: the view is missing"),
        (("DROP VIEW v_gate", "CREATE TABLE v_gate (run TEXT, decision TEXT)"), "v_gate: the view is missing"),
        (
            ("DROP VIEW v_gate", "CREATE VIEW v_gate AS SELECT run_id AS run, 'allow' AS decision FROM gate_decision"),
            "v_gate: the view was altered",
        ),
    ],
)
def test_a_view_that_says_something_else_is_named(url, statements, message):
    tamper(url, *statements)
    assert damage(url) == [message]
    if "TABLE" not in statements[-1] and url.startswith("sqlite"):
        migrate.upgrade(url)
        assert damage(url) == []


@pytest.mark.medium
def test_a_truth_value_that_is_another_number_is_named(tmp_path):
    """SQLite keeps a 2 as a truth value, which SQLAlchemy reads as true and queries count as two."""
    url = f"sqlite:///{ran(tmp_path, SUITE)}"
    assert damage(url) == []
    tamper(url, "UPDATE arm_speculation SET speculation = 2 WHERE speculation = 1")
    assert "the columns of its speculation settings were changed" in damage(url)[0]


@pytest.mark.medium
def test_a_view_of_the_users_own_is_no_damage(url):
    tamper(url, "CREATE VIEW blocked AS SELECT * FROM v_gate WHERE decision = 'block'")
    assert damage(url) == []


@pytest.mark.medium
def test_rows_inserted_past_the_log_are_named(url):
    columns = "run_id, status, at, detail"
    tamper(url, f"INSERT INTO run_event (id, {columns}) SELECT 50, {columns} FROM run_event WHERE id = 1")
    assert damage(url) == [f"run_event 50: {UNLOGGED}"]


@pytest.mark.medium
def test_a_cut_log_is_named_by_the_rows_it_no_longer_covers(url):
    tamper(url, "DELETE FROM log_entry WHERE seq > (SELECT MAX(seq) FROM log_entry) - 3")
    assert damage(url) == [f"{name} 1: {UNLOGGED}" for name in ("attachment", "erasure", "checkpoint")]


@pytest.mark.medium
def test_entries_that_change_places_are_named(url):
    tamper(
        url,
        "UPDATE log_entry SET seq = 900 WHERE seq = 5",
        "UPDATE log_entry SET seq = 5 WHERE seq = 6",
        "UPDATE log_entry SET seq = 6 WHERE seq = 900",
    )
    assert damage(url) == [f"log entry 5: {MISFIT}"]


@pytest.mark.medium
def test_a_row_edited_with_its_leaf_does_not_fit_the_tree(url):
    tamper(url, "UPDATE log_entry SET leaf = (SELECT leaf FROM log_entry WHERE seq = 3) WHERE seq = 8")
    assert f"log entry 8: {MISFIT}" in damage(url)


@pytest.mark.medium
def test_replaced_rows_are_named(tmp_path):
    """Without `recursive_triggers`, which every connection may turn off, a REPLACE fires no trigger."""
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    migrate.upgrade(url)
    fill_every_table(url)
    with sqlite3.connect(tmp_path / "audit.db") as raw:
        row = list(raw.execute("SELECT * FROM check_result WHERE id = 2").fetchone())
        row[5] = "certified"
        raw.execute(f"INSERT OR REPLACE INTO check_result VALUES ({', '.join('?' * len(row))})", row)
    assert damage(url) == [line for line in damage(url) if "check_result 2" in line] != []


def changed(column, postgresql):
    """SQL of another value of the column's type."""
    name, kind = column.name, str(column.type).upper()
    if kind == "JSON":
        return """'{"other": 1}'"""
    if kind == "BOOLEAN":
        return f"NOT {name}"
    if kind in {"INTEGER", "BIGINT", "DOUBLE"}:
        return f"COALESCE({name}, 0) + 1"
    if kind == "DATETIME":
        return "'2001-02-03 04:05:06.000000'" + ("" if not postgresql else "::timestamptz")
    if kind == "BLOB":
        return "decode('00', 'hex')" if postgresql else "x'00'"
    return f"COALESCE(substr({name}, 2), '') || 'x'"


def literal(value):
    return repr(value) if isinstance(value, str) else str(value)


def one_row(connection, table):
    """A condition that one row meets, the last by its key."""
    keys = [column.name for column in table.primary_key]
    order = ", ".join(f"{key} DESC" for key in keys)
    row = connection.execute(text(f"SELECT {', '.join(keys)} FROM {table.name} ORDER BY {order} LIMIT 1")).one()
    return " AND ".join(f"{key} = {literal(value)}" for key, value in zip(keys, row, strict=True))


def seen(connection, table, column):
    """Whether a check in the same transaction sees the edit, which is taken back."""
    owner = Tampered(connection)
    where = one_row(connection, table)
    owner.off()
    owner(f"UPDATE {table.name} SET {column.name} = {changed(column, owner.postgresql)} WHERE {where}")
    owner.on()
    with Session(connection) as session:
        found = list(health.damage(session))
    connection.rollback()
    return bool(found)


@pytest.mark.slow
def test_an_edit_of_any_column_is_found(url):
    """Of every column but those of text derived for queries."""
    columns = [
        (table, column)
        for table in Base.metadata.sorted_tables
        if ELSEWHERE.get(table.name) != DERIVED
        for column in table.columns
    ]
    with connected(url) as connection:
        if connection.dialect.name != "postgresql":
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.rollback()
        unseen = [str(column) for table, column in columns if not seen(connection, table, column)]
    assert unseen == []
    assert len(columns) > 120
