"""A GGUF file from `audit init` to `audit gate`: one conversion, and the file's digest in the record."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from audit.serve.opened_arm import ServedSource
from engine.models.files.folder import bundled_folder
from tests.audit.invoke import invoke

pytest.importorskip("gguf")
pytestmark = pytest.mark.medium
ROWS = "".join(json.dumps({"id": str(at), "prompt": f"def add({at}, b):"}) + "\n" for at in range(6))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    from engine.backends.llama_cpp.build import build

    home = tmp_path_factory.mktemp("gguf") / "made"
    build(bundled_folder("bundled:draft"), home)
    return home / "model.gguf"


@pytest.fixture
def folder(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copyfile(file, "small.gguf")
    Path("rows.jsonl").write_text(ROWS)
    return tmp_path


def test_from_the_first_suite_to_the_gate(folder):
    made = invoke("init", "small.gguf", "--prompts", "rows.jsonl")
    assert made.exit_code == 0, made.stderr
    note, written = made.stderr.splitlines()
    assert note.startswith("audit: small.gguf: writing its weights in float32, once, to ")
    assert written == "small.yaml: written"
    text = Path("small.yaml").read_text()
    assert 'target: "./small.gguf"' in text
    fewer = re.sub("^samples: [0-9]+", "samples: 1", text, flags=re.MULTILINE)
    Path("small.yaml").write_text(fewer.replace("max_new_tokens: 96", "max_new_tokens: 8"))
    for command in ("validate", "plan"):
        assert "writing" not in invoke(command, "small.yaml").stderr
    ran = invoke("run", "small.yaml", "--store", "a.db", "--results", "results.json")
    assert "writing" not in ran.stderr
    used = {item["role"]: item for item in json.loads(Path("results.json").read_text())["run"]["artifacts"]}
    digest = hashlib.sha256(Path("small.gguf").read_bytes()).hexdigest()
    assert (used["gguf/target"]["name"], used["gguf/target"]["sha256"]) == ("small.gguf", digest)
    assert f"gguf/target   small.gguf  sha256:{digest}" in invoke("show", "latest", "--store", "a.db").stdout
    gate = ("gate", "latest", "--store", "a.db", "--policy", "standard", "--subject")
    assert "target is another" not in invoke(*gate, "target=small.gguf").stdout
    other = invoke(*gate, f"target={bundled_folder('bundled:target')}")
    assert f"sha256:{used['target']['sha256']}" in other.stdout + other.stderr
    assert len(list((folder / "cache/specaudit/gguf-1").iterdir())) == 1


def test_a_broken_file_is_one_line(folder):
    Path("small.gguf").write_bytes(Path("small.gguf").read_bytes()[:9000])
    Path("own.yaml").write_text(
        "version: 1\nname: small\nmodels: {target: small.gguf}\nworkloads: [{name: own, prompts: rows.jsonl}]\n"
        "sampling: {max_new_tokens: 8}\narms: [{name: ngram, proposer: {kind: ngram, gamma: 2}, verifier: greedy}]\n"
    )
    for arguments in (
        ("init", "small.gguf"),
        ("run", "own.yaml", "--store", "a.db"),
        ("doctor", "--model", "small.gguf"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert "small.gguf: not a readable GGUF file" in result.stderr
    assert list((folder / "cache/specaudit/gguf-1").iterdir()) == []


def test_a_served_file_is_no_suite(folder):
    assert ServedSource("small.gguf").wish().models["target"].source == "small.gguf"
