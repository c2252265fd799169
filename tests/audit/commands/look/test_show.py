from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import Finding
from audit.store import Attachment, NewCheck, Store, StoredDecision
from tests.audit.invoke import invoke
from tests.audit.store.build import RESULT, fill, made_store


def run(*arguments: str):
    return invoke("show", *arguments)


@pytest.fixture
def url(tmp_path):
    made = made_store(tmp_path)
    moment = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
    with Store.open(made, create=False) as store:
        ulid = store.resolve("latest")
        store.add_decision(StoredDecision(ulid, "e" * 64, {}, "block", ("law is fault",), "ci", moment))
        store.add_attachment(Attachment(ulid, "a" * 64, "b" * 64, "lm_eval", "results.json", {}, moment))
    return made


@pytest.mark.medium
def test_a_run_is_shown_with_arms_and_verdicts(url):
    result = run("--store", url)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["target", "big", f"sha256:{'a' * 64}"] in lines
    assert ["spec", "candidate", "L4", "yes", "2", "4", "14", "7", "11"] in lines
    assert ["spec", "law", "law", "fault", "L3", "12", "-", "0.25", "-", "too", "far"] in lines
    assert "decision: block by ci, 2026-05-06 07:08:09: law is fault" in result.stdout
    assert f"attached: lm_eval results.json sha256:{'b' * 64}" in result.stdout
    assert "r0 step 3: differs" in result.stdout
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.medium
def test_json_holds_everything(url):
    document = json.loads(run("latest", "--json", "--store", url).stdout)
    assert document["format"] == 3
    assert f"content root  {document['run']['content_root']}" in run("latest", "--store", url).stdout
    assert document["run"]["arms"][1]["counts"]["accepted"] == 7
    assert document["run"]["arms"][1]["level"] == "L4"
    assert [check["verdict"] for check in document["checks"]] == ["fault", "certified"]
    assert document["checks"][0]["details"] == {"rate": None, "by_domain": {"chat": [1, 2]}}
    assert document["decisions"][0]["reasons"] == ["law is fault"]
    assert document["attachments"][0]["location"] == "results.json"


@pytest.mark.medium
def test_an_unfinished_run_says_so(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        ulid = fill(store)
    output = run(ulid[:20], "--store", url).stdout
    assert "not ended" in output
    assert "none: the run is not finished" in output
    assert "checks: none" in output


@pytest.mark.medium
def test_an_unknown_run_is_the_users_error(url):
    result = run("7ZZ", "--store", url)
    assert result.exit_code == 2
    assert "no run begins with '7ZZ'" in result.stderr
    assert result.stdout == ""


@pytest.mark.medium
def test_stored_text_cannot_steer_the_terminal(url):
    hostile = replace(RESULT, summary="ok\x1b[2J\nfake line", findings=(Finding("r\x1b]0;x\x07", 0, "a\rb"),))
    with Store.open(url, create=False) as store:
        store.add_check(store.resolve("latest"), NewCheck("base", "law", "law", Level.L3, hostile))
    output = run("--store", url).stdout
    assert "\x1b" not in output
    assert "\r" not in output
    assert "ok\\x1b[2J\\nfake line" in output
