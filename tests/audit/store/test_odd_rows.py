"""Values that nothing here writes: commands name the row and the column in one line, and a bug stays a traceback."""

from __future__ import annotations

import sqlite3

import pytest

from audit.errors import CannotDecide
from audit.store import Store
from audit.store.odd_rows import first_odd
from tests.audit.gate.attacks.honest import edited
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill_every_table, made_store

ODD = (
    ("run", "status", "'1'"),
    ("run", "started_at", "'2026-13-45'"),
    ("run", "config", "'{'"),
    ("arm", "level", "'L9'"),
    ("arm", "spec", "X'00'"),
    ("check_result", "verdict", "'perhaps'"),
    ("check_result", "n", "'many'"),
    ("environment", "packages", "'[[['"),
    ("coverage", "examined", "'x'"),
)


@pytest.mark.parametrize(("table", "column", "value"), ODD)
def test_an_odd_value_is_named_with_its_row(tmp_path, table, column, value):
    store = tmp_path / "audit.db"
    made_store(tmp_path)
    edited(store, f"UPDATE {table} SET {column} = {value}")
    for command in (("show", "latest"), ("coverage", "latest"), ("list",), ("db", "check")):
        done = invoke(*command, "--store", str(store))
        assert isinstance(done.exception, SystemExit | None), (command, done.exception)
        assert done.exit_code in range(4)
        assert done.exit_code < 2 or done.stderr.count("\n") == 1
    with connected(f"sqlite:///{store}", read_only=True) as connection:
        assert f": {column} is " in str(first_odd(connection.engine))


def test_a_row_that_is_gone_is_named(tmp_path):
    made_store(tmp_path)
    edited(tmp_path / "audit.db", "DELETE FROM environment")
    done = invoke("show", "latest", "--store", str(tmp_path / "audit.db"))
    assert done.exit_code == 3
    assert "environment" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_store_without_odd_values_has_none(tmp_path):
    made_store(tmp_path)
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    fill_every_table(url)
    with connected(url, read_only=True) as connection:
        assert first_odd(connection.engine) is None


def test_a_bug_stays_a_traceback(tmp_path):
    with pytest.raises(KeyError), Store.open(made_store(tmp_path), create=False):
        raise KeyError("bug")


def test_another_edit_behind_a_failure_is_named_too(tmp_path):
    url = made_store(tmp_path)
    with sqlite3.connect(tmp_path / "audit.db") as database:
        database.execute("DROP TRIGGER guard_arm_update")
        database.execute("UPDATE arm SET name = name || 's'")
    with pytest.raises(CannotDecide, match="guard_arm_update"), Store.open(url, create=False):
        raise KeyError("other")
