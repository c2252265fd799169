"""Signed attachments: every format without a heavy package, one report with several runs, changes afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import parse_eval_result_entries
from ruamel.yaml import YAML

from audit.attach.interface import load_format
from audit.store.base import keys
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke

CARD = "---\nlicense: mit\ntags:\n- x\n---\n# Card\n\n---\nrest\n"
RESULTS = "- dataset:\n    id: org/set\n    task_id: t\n  value: 1.50\n- dataset: {id: org/b, task_id: u}\n  value: 2\n"
REPORTS = {
    "card.md": ("model_card", CARD),
    "r.yaml": ("eval_results", RESULTS),
    "bom.json": ("cyclonedx", '{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}'),
    "t.xml": ("junit", '<testsuites><testsuite name="a"><testcase name="b"/></testsuite></testsuites>'),
    "u.xml": ("junit", '<testsuite name="a"><properties><property name="p" value="q"/></properties></testsuite>'),
    "plain.json": ("json", '{"a": 1.0}'),
    "samples_x.jsonl": ("lm_eval_samples", '{"doc_id": 0, "doc_hash": "a", "resps": []}\n'),
    "page.html": ("file", "<p>1</p>"),
    "note.md": ("file", "no front matter"),
    "r.pdf": ("file", "%PDF-1.7"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    keys.init(tmp_path / "k", "example.org/audit")
    return stored_run(tmp_path)


def attach(url: str, report: Path, *more: str):
    return invoke("attach", "latest", str(report), "--key", str(report.parent / "k"), "--store", url, *more)


def verify(url: str, report: Path, *more: str):
    return invoke("verify", str(report), "--key", f"{report.parent / 'k'}.pub", "--store", url, *more)


@pytest.mark.medium
def test_every_format_verifies_and_a_change_afterwards_fails(url, tmp_path):
    for name, (form, content) in REPORTS.items():
        path = tmp_path / name
        path.write_text(content)
        made = attach(url, path, "--in-place")
        assert made.exit_code == 0, (name, made.output)
        assert load_format(form).carrying == (path.read_text() != content), name
        assert (tmp_path / ".audit" / f"{name}.intoto.jsonl").exists()
        done = verify(url, path)
        assert (done.exit_code, "signed by example.org/audit" in done.stdout) == (0, True), (name, done.output)
        if load_format(form).carrying:
            assert load_format(form).remove(path.read_bytes()) == content.encode(), name
        path.write_bytes(path.read_bytes() + b" ")
        assert verify(url, path).exit_code == 1, name


@pytest.mark.medium
def test_the_formats_own_readers_accept_what_is_embedded(url, tmp_path):
    for name in ("bom.json", "r.yaml"):
        (tmp_path / name).write_text(REPORTS[name][1])
        assert attach(url, tmp_path / name, "--in-place").exit_code == 0
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((tmp_path / "bom.json").read_text()) is None
    entries = parse_eval_result_entries(YAML(typ="safe").load((tmp_path / "r.yaml").read_text()))
    assert [entry.notes.startswith("audited by specaudit") for entry in entries] == [True, True]


@pytest.mark.medium
def test_several_runs_are_attached_to_one_report(url, tmp_path):
    path = tmp_path / "plain.json"
    path.write_text('{"a": 1}')
    assert attach(url, path, "--in-place").exit_code == 0
    once = path.read_bytes()
    stored_run(tmp_path)
    assert attach(url, path).exit_code == 0
    assert path.read_bytes() == once
    done = verify(url, path)
    assert (done.exit_code, done.stdout.count("verified: ")) == (0, 2), done.output


@pytest.mark.medium
def test_what_is_missing_is_one_line(url, tmp_path):
    path = tmp_path / "plain.json"
    path.write_text('{"a": 1}')
    unsigned = invoke("attach", "latest", str(path), "--sidecar", "--store", url)
    assert (unsigned.exit_code, "add --key" in unsigned.stderr) == (2, True)
    assert attach(url, path, "--sidecar").exit_code == 0
    bare = invoke("verify", str(path), "--store", url)
    assert (bare.exit_code, "add --key FILE.pub" in bare.stderr) == (2, True)
    keys.init(tmp_path / "other", "other.org/audit")
    wrong = invoke("verify", str(path), "--key", str(tmp_path / "other.pub"))
    assert (wrong.exit_code, "0 of 1 signatures hold" in wrong.stdout) == (1, True)
