from __future__ import annotations

import sqlite3

import pytest

from audit.store import Store, migrate
from audit.store.tables.runs import REVISION
from tests.audit.invoke import invoke
from tests.audit.store.build import fill, fill_finished, made_store


def run(*arguments: str):
    return invoke("db", *arguments)


@pytest.mark.medium
def test_upgrade_makes_a_store_and_says_its_revision(tmp_path):
    path = tmp_path / "new" / "audit.db"
    result = run("upgrade", "--store", str(path))
    assert (result.exit_code, result.stdout) == (0, f"sqlite:///{path}: revision {REVISION}\n")
    assert run("upgrade", "--store", str(path)).exit_code == 0
    assert run("current", "--store", str(path)).stdout == f"{REVISION}\n"


def test_current_of_a_missing_store_is_the_users_error(tmp_path):
    result = run("current", "--store", str(tmp_path / "no.db"))
    assert result.exit_code == 2
    assert not (tmp_path / "no.db").exists()


@pytest.mark.medium
def test_a_whole_store_passes_its_check(tmp_path):
    url = made_store(tmp_path)
    result = run("check", "--store", url)
    assert (result.exit_code, result.stdout) == (0, f"{url}: whole\n")


@pytest.mark.medium
def test_an_edited_row_is_named_and_fails(tmp_path):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        ulid = store.resolve("latest")
        later = fill_finished(store)
    with sqlite3.connect(tmp_path / "audit.db") as connection:
        connection.execute("DROP TRIGGER guard_request_update")
        connection.execute("UPDATE request SET n_accepted = n_accepted + 1 WHERE id = 3")
    result = run("check", "--store", url)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "guard_request_update: the append-only trigger is missing",
        f"{ulid} spec/case-a#0: the request's row, steps or trace digest were changed",
        f"{url}: 2 places are not as they were",
    ]
    only_later = run("check", later, "--store", url)
    assert only_later.exit_code == 1
    assert ulid not in only_later.stdout


@pytest.mark.medium
def test_an_unfinished_run_is_only_checked_when_named(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        ulid = fill(store)
    assert run("check", "--store", url).exit_code == 0
    named = run("check", ulid, "--store", url)
    assert named.exit_code == 1
    assert "never finished" in named.stdout


@pytest.mark.medium
def test_an_older_store_is_named_with_the_mend(tmp_path):
    url = made_store(tmp_path)
    with sqlite3.connect(tmp_path / "audit.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    result = run("check", "--store", url)
    assert result.exit_code == 2
    assert "name a new store and run again" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert migrate.current(url) == "0000"
