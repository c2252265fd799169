"""The packaged suites on the real engine, and a fault that is planted beside it."""

import json
import shutil

import numpy as np
import pytest

from engine.backends.process.convert import MANIFEST, digests
from tests.support.engine_suites import ROOT, silent, uncertified, verdicts

pytestmark = pytest.mark.llama
WAYS = {"draft-model", "drawn-drafts", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"}
PLANTED = """
version: 1
name: planted
backend: llama_cpp
batch_size: 1
engine: {{threads: 1, gguf: {{target: {target}, draft: {draft}}}}}
models: {{target: "bundled:target", draft: "bundled:medium_draft"}}
workloads: [{{name: code, prompts: {prompts}, limit: 8}}]
sampling: {{max_new_tokens: 48, temperature: 0}}
arms:
  - name: sound
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    checks: [greedy_equality, reconciliation]
  - name: other-weights
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    engine: {{threads: 1, gguf: {{target: {changed}, draft: {draft}}}}}
    checks: [greedy_equality, reconciliation]
"""


def test_tokens_are_certified_and_log_probabilities_of_drafts_are_zero(tmp_path):
    """A defect of the engine (llama.cpp 27972); all other checks of every way of speculating pass."""
    code, judged = verdicts(tmp_path, "suites/llama_cpp/greedy.yaml")
    assert {arm for arm, _ in judged} == WAYS
    assert uncertified(judged) == {(way, "logprob_closeness"): "fault" for way in WAYS}
    for way in WAYS:
        findings = judged[way, "logprob_closeness"]["findings"]
        assert all("log-probability 0, the baseline has" in finding["message"] for finding in findings)
    assert code == 1


def test_sampled_tokens_keep_the_law_and_matched_drafts_the_seeds(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/sampling.yaml")
    assert uncertified(judged) == {}
    matched = {arm for arm, check in judged if check == "same_seed"}
    assert matched == (WAYS - {"drawn-drafts"}) | {"draft-top-k"}
    assert {arm for arm, check in judged if check == "token_law"} == WAYS | {
        "draft-top-k",
        "drawn-top-k",
        "drawn-top-p",
    }
    assert code == 0


def test_the_exact_law_is_kept(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/exact_law.yaml")
    assert uncertified(judged) == {}
    assert {arm for arm, _ in judged} == {"draft-model", "drawn-drafts", "drawn-top-k", "ngram-simple"}
    assert code == 0


def test_every_parameter_is_kept_with_every_way_of_speculating(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/parameters.yaml")
    assert uncertified(judged) == {}
    assert silent(tmp_path) == set()
    varied = ("repetition_penalty-1.3", "logit_bias-0", "bad_words-0", "stop-0", "max_new_tokens-37")
    assert {arm for arm, _ in judged} == {*WAYS, *(f"{way}.{name}" for way in WAYS for name in varied)}
    assert code == 0


def test_a_speculating_engine_with_other_weights_is_caught(tmp_path, converted):
    """The manifest agrees with the changed file: only the tokens tell."""
    changed = tmp_path / "changed"
    shutil.copytree(converted["target"].folder, changed)
    _change_weights(changed)
    folders = {name: model.folder for name, model in converted.items()}
    suite = tmp_path / "planted.yaml"
    prompts = ROOT / "suites" / "prompts" / "code.jsonl"
    suite.write_text(PLANTED.format(**folders, changed=changed, prompts=prompts))
    code, judged = verdicts(tmp_path, suite)
    assert code == 1
    assert uncertified(judged) == {("other-weights", "greedy_equality"): "fault"}


def _change_weights(folder):
    """Noise of a fifth of their own spread on the last layer's output weights."""
    # imported here, because only the environment of the engine has it
    import gguf

    reader = gguf.GGUFReader(folder / "model.gguf", "r+")
    weights = next(each.data for each in reader.tensors if each.name == "blk.3.ffn_down.weight")
    weights += (np.random.default_rng(0).normal(size=weights.shape) * weights.std() / 5).astype(np.float32)
    reader.data.flush()
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["result"]["files"] = digests(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
