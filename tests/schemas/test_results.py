from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import schemas
from audit.store import Store
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke
from tests.audit.store.build import fill


def shown(url: str) -> dict:
    result = invoke("show", "--json", "--store", url)
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.mark.medium
def test_a_run_with_a_decision_and_an_attachment_follows_the_schema(tmp_path: Path):
    url = stored_run(tmp_path)
    report = tmp_path / "report.json"
    report.write_text("{}")
    assert invoke("attach", "latest", str(report), "--store", url).exit_code == 0
    assert invoke("gate", "latest", "--policy", "standard", "--trust-verdicts", "--store", url).exit_code == 3
    document = shown(url)
    Draft202012Validator(schemas.load("results")).validate(document)
    assert [len(document[key]) for key in ("checks", "decisions", "attachments")] == [3, 1, 1]


@pytest.mark.medium
def test_an_unfinished_run_follows_the_schema(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    with Store.open(url, create=True) as store:
        fill(store)
    document = shown(url)
    Draft202012Validator(schemas.load("results")).validate(document)
    assert document["run"]["record_root"] is None


@pytest.mark.medium
@pytest.mark.parametrize("key", ["run", "checks"])
def test_a_missing_part_does_not(tmp_path: Path, key):
    document = shown(stored_run(tmp_path))
    del document[key]
    assert not Draft202012Validator(schemas.load("results")).is_valid(document)
