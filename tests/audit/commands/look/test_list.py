from __future__ import annotations

import json

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.store.build import fill_finished, made_store, start


def run(*arguments: str):
    return invoke("list", *arguments)


@pytest.mark.medium
def test_runs_are_listed_newest_first(tmp_path):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        second = store.begin_run(start())
    result = run("--store", url)
    header, first_line, second_line = result.stdout.splitlines()
    assert header.split()[:3] == ["run", "suite", "status"]
    assert first_line.split()[:3] == [second, "smoke", "running"]
    assert second_line.split()[2] == "finished"
    assert "1 certified, 1 fault" in second_line
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.medium
def test_json_is_one_document_with_the_same_facts(tmp_path):
    url = made_store(tmp_path)
    (only,) = json.loads(run("--json", "--store", url).stdout)
    assert (only["suite_name"], only["status"], only["requests"], only["tokens"]) == ("smoke", "finished", 4, 19)
    assert only["verdicts"] == {"certified": 1, "fault": 1}


@pytest.mark.medium
def test_limit_cuts_the_list(tmp_path):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        newest = fill_finished(store)
    assert [each["ulid"] for each in json.loads(run("--limit", "1", "--json", "--store", url).stdout)] == [newest]
    assert run("--limit", "0", "--store", url).exit_code == 2


@pytest.mark.medium
def test_an_empty_store_is_no_error(tmp_path):
    url = str(tmp_path / "empty.db")
    Store.open(url, create=True).close()
    result = run("--store", url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no runs yet" in result.stderr
    assert json.loads(run("--json", "--store", url).stdout) == []


def test_a_missing_store_is_the_users_error_and_is_not_made(tmp_path):
    result = run("--store", str(tmp_path / "no.db"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_the_store_may_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AUDIT_STORE", made_store(tmp_path))
    assert "smoke" in run().stdout


@pytest.mark.parametrize("value", ["", "sqlite://"])
def test_an_unusable_store_is_the_users_error(value):
    assert run("--store", value).exit_code == 2
