"""Values that nothing here writes: commands name the row and the column in one line, and a bug stays a traceback."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from audit.errors import CannotDecide
from audit.store import Store
from audit.store.tables.foreign_values import first_odd
from audit.store.tables.runs import Base
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
    ("arm", "spec", "'[1]'"),
    ("environment", "code", "'1.5'"),
    ("coverage", "examined", "'x'"),
)


@pytest.mark.medium
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


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list",),
    ("show", "latest"),
    ("coverage", "latest"),
    ("gate", "latest", "--policy", "standard"),
    ("db", "check"),
    ("report", "latest", "--html", "{folder}/page.html", "--force"),
    ("report", "latest", "--markdown"),
    ("export", "latest", "--out", "{folder}/run.zip"),
    ("query", "SELECT * FROM v_token"),
    ("disclose", "latest"),
    ("checklist", "latest"),
    ("bom", "latest"),
    ("diff", "latest", "latest"),
    ("judge", "latest"),
)
STRANGE = ("X'FF00'", "'\u202e\x1b]0;x\x07'")


def columns():
    """Every column of every table that the made store fills, without the keys that rows refer to."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if not column.primary_key:
                yield table.name, column.name


@pytest.mark.slow
@pytest.mark.parametrize("value", STRANGE)
def test_no_value_of_any_column_is_a_traceback_or_lets_a_run_through(tmp_path, value):
    made_store(tmp_path)
    fill_every_table(f"sqlite:///{tmp_path / 'audit.db'}")
    wrong: list[str] = []
    for table, column in columns():
        copy = tmp_path / f"{table}.{column}.db"
        shutil.copyfile(tmp_path / "audit.db", copy)
        try:
            edited(copy, f"UPDATE {table} SET {column} = {value}")
        except sqlite3.IntegrityError:
            continue  # the schema itself refuses the value
        for words in COMMANDS:
            done = invoke(*(word.format(folder=tmp_path) for word in words), "--store", str(copy))
            if not bounded(done) or (words[0] == "gate" and done.exit_code == 0):
                wrong.append(f"{table}.{column} {words[0]}: {done.exit_code} {done.exception!r} {done.stderr[:200]!r}")
    assert not wrong, "\n".join(wrong)


def bounded(done):
    """True if a command ended as documented: a code of 0 to 3, at most one line of an error, nothing to be obeyed."""
    ended = isinstance(done.exception, SystemExit | None) and done.exit_code in range(4)
    errors = [line for line in done.stderr.splitlines() if line.startswith("audit: ")]
    return ended and bool(done.output) and len(errors) <= 1 and not set(done.output) & set("\x1b\u202e")


@pytest.mark.medium
def test_a_row_that_is_gone_is_named(tmp_path):
    made_store(tmp_path)
    edited(tmp_path / "audit.db", "DELETE FROM environment")
    done = invoke("show", "latest", "--store", str(tmp_path / "audit.db"))
    assert done.exit_code == 3
    assert "environment" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.medium
def test_a_store_without_odd_values_has_none(tmp_path):
    made_store(tmp_path)
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    fill_every_table(url)
    with connected(url, read_only=True) as connection:
        assert first_odd(connection.engine) is None


@pytest.mark.medium
def test_a_bug_stays_a_traceback(tmp_path):
    with pytest.raises(KeyError), Store.open(made_store(tmp_path), create=False):
        raise KeyError("bug")


@pytest.mark.medium
def test_another_edit_behind_a_failure_is_named_too(tmp_path):
    url = made_store(tmp_path)
    with sqlite3.connect(tmp_path / "audit.db") as database:
        database.execute("DROP TRIGGER guard_arm_update")
        database.execute("UPDATE arm SET name = name || 's'")
    with pytest.raises(CannotDecide, match="guard_arm_update"), Store.open(url, create=False):
        raise KeyError("other")
