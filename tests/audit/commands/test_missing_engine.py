"""A suite for an engine that is not installed: one line, exit code 2, no store."""

from __future__ import annotations

import importlib
import stat
import sys
from dataclasses import replace

import pytest

from engine.backends.native import NATIVE_KIND
from engine.core.registry import BACKENDS
from tests.audit.invoke import invoke

VLLM = """
version: 1
name: elsewhere
backend: vllm
seed: 1
models: {{target: 'bundled:target'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
engine: {{python: {python}, max_model_len: 64, kv_cache_gib: 0.25}}
sampling: {{max_new_tokens: 4}}
arms:
  - {{name: ngram, proposer: {{kind: ngram, gamma: 2}}, verifier: greedy, checks: [liveness]}}
"""
ABSENT = "a_package_that_nobody_has"


@pytest.fixture
def suite(tmp_path):
    """A suite for vLLM in an interpreter that lacks it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\" >&2\nexit 1\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    path = tmp_path / "suite.yaml"
    path.write_text(VLLM.format(python=python))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n')
    return path


def refused(result, store) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    *started, line = result.stderr.splitlines()
    assert all(each.startswith("starting ") for each in started)
    assert not store.exists()
    return line


def test_a_run_without_vllm_is_one_line_behind_what_it_starts(suite, tmp_path):
    store = tmp_path / "audit.db"
    allow = ("--allow-engine-python", str(tmp_path / "python"))
    result = invoke("run", str(suite), "--store", str(store), *allow)
    line = refused(result, store)
    assert result.stderr.splitlines()[0].startswith("starting vLLM (no draft) for arm baseline/greedy")
    assert line.startswith(f"audit: {suite}: {tmp_path / 'python'} has no vLLM; run this in an environment")


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_what_loads_no_engine_needs_none(suite, tmp_path, command):
    store = () if command == "validate" else ("--store", str(tmp_path / "audit.db"))
    assert invoke(command, str(suite), *store).exit_code in (0, 3)


def open_lacking(models):
    importlib.import_module(ABSENT)


LACKING = replace(NATIVE_KIND, open=open_lacking)


def test_a_run_without_the_backend_s_package_is_one_line(suite, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "native", f"{__name__}:LACKING")
    text = suite.read_text().replace("backend: vllm", "backend: native")
    suite.write_text("\n".join(line for line in text.splitlines() if not line.startswith("engine:")))
    store = tmp_path / "audit.db"
    line = refused(invoke("run", str(suite), "--store", str(store)), store)
    assert f"backend native needs the package {ABSENT}, which {sys.executable} lacks" in line
