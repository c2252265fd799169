"""The repaired engine passes its packaged suite; with moved internals a gate that asks for rows cannot decide."""

from dataclasses import replace
from functools import partial

import pytest

from audit.evidence.records import Level
from audit.gate.policy import load_policy
from engine.backends import vllm as vllm_backend
from engine.backends.vllm.backend import VllmBackend
from tests.audit.invoke import invoke

from .packaged import verdicts

pytestmark = pytest.mark.vllm

POLICY = """
version: 1
name: replayable
require:
  - {claim: equality, checks: [greedy_equality]}
evidence: {min_tokens: 10, max_age: 30d, min_level: L3}
"""
DRIFTED = """
version: 1
name: drifted
backend: vllm
batch_size: 4
models: {target: bundled:target}
workloads: [{name: chat, prompts: 'suites:prompts/chat.jsonl', limit: 12}]
sampling: {max_new_tokens: 48}
engine: {max_model_len: 640, kv_cache_gib: 0.25}
arms:
  - name: ngram
    proposer: {kind: ngram, gamma: 3, options: {prompt_lookup_min: 1, prompt_lookup_max: 3}}
    verifier: greedy
    checks: [greedy_equality, reconciliation]
"""


def test_the_repaired_engine_passes(tmp_path):
    code, found = verdicts(tmp_path, "repaired")
    assert {key: each["verdict"] for key, each in found.items() if each["verdict"] != "certified"} == {}
    assert code == 0


def test_a_gate_that_asks_for_rows_cannot_decide_where_the_internals_moved(tmp_path, monkeypatch):
    moved = partial(VllmBackend, extension="tests.vllm.renamed.Renamed")
    monkeypatch.setattr(vllm_backend, "KIND", replace(vllm_backend.KIND, open=moved))
    (tmp_path / "suite.yaml").write_text(DRIFTED)
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert load_policy(tmp_path / "policy.yaml").min_level is Level.L3
    store = ("--store", f"sqlite:///{tmp_path / 'audit.db'}")
    ended = invoke("run", str(tmp_path / "suite.yaml"), "-v", *store)
    assert "rejection_sample_with_another_name" in ended.stdout
    assert ended.exit_code == 3, "the accounts are not all there"
    decided = invoke("gate", "latest", "--policy", str(tmp_path / "policy.yaml"), *store)
    assert decided.exit_code == 3, decided.stdout + decided.stderr
    assert "rests on evidence L1, L3 is required" in decided.stdout
