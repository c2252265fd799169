"""The packaged suites on the real engine, and a fault that is planted beside it."""

import json
import shutil

import numpy as np
import pytest

from engine.backends.process.convert import MANIFEST, digests
from tests.support.engine_suites import ROOT, silent, uncertified, verdicts

pytestmark = pytest.mark.openvino
PLANTED = """
version: 1
name: planted
backend: openvino_genai
batch_size: 1
engine: {{threads: 1, openvino: {{target: {target}, draft: {draft}}}}}
models: {{target: "bundled:target", draft: "bundled:medium_draft"}}
workloads: [{{name: code, prompts: {prompts}, limit: 8}}]
sampling: {{max_new_tokens: 48, temperature: 0}}
arms:
  - name: sound
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    checks: [greedy_equality, logprob_closeness]
  - name: other-weights
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    engine: {{threads: 1, openvino: {{target: {changed}, draft: {draft}}}}}
    checks: [greedy_equality, logprob_closeness]
"""


def test_one_request_at_a_time_is_certified(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/greedy.yaml")
    assert uncertified(judged) == {}
    assert {arm for arm, _ in judged} == {"draft-model", "confident-drafts", "prompt-lookup"}
    assert code == 0


def test_requests_together_get_tokens_of_others_with_a_draft_model(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/batch.yaml")
    assert code == 1
    wrong = uncertified(judged)
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == {
        ("draft-model", "logprob_closeness"),
        ("confident-drafts", "logprob_closeness"),
    }
    assert "prompt-lookup" not in {arm for arm, _ in wrong}
    assert all(
        "more than 1 apart" in found["message"] for found in judged["draft-model", "logprob_closeness"]["findings"]
    )


def test_a_draft_model_breaks_the_law_of_sampling(tmp_path):
    """Every departure is an arm with a draft model; its seeds give other tokens too, which no rows explain."""
    code, judged = verdicts(tmp_path, "suites/openvino/sampling.yaml")
    assert code == 1
    wrong = uncertified(judged)
    drafted = {(arm, "token_law") for arm in ("warm", "top-k", "confident-drafts")}
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == drafted
    assert set(wrong) - drafted <= {("warm", "seed"), ("confident-drafts", "seed")}
    assert ("confident-drafts", "seed") in wrong


def test_the_shortest_length_is_ignored_and_other_parameters_are_kept(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/parameters.yaml")
    assert code == 1
    assert silent(tmp_path) == set()
    wrong = uncertified(judged)
    ignored = {(f"{way}-min", "accounting") for way in ("draft-model", "confident-drafts", "prompt-lookup")}
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == ignored
    assert all(arm.endswith("-min") for arm, _ in wrong)
    findings = [finding for arm, check in ignored for finding in judged[arm, check]["findings"]]
    assert all("min_tokens is 12" in finding["message"] for finding in findings)


def test_a_draft_model_breaks_the_exact_law(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/exact_law.yaml")
    assert code == 1
    assert uncertified(judged) == {(arm, "token_law"): "fault" for arm in ("draft-model", "draft-model-top-k")}


def test_a_speculating_engine_with_other_weights_is_caught(tmp_path, converted):
    """The manifest agrees with the changed files: only the tokens and their log-probabilities tell."""
    changed = tmp_path / "changed"
    shutil.copytree(converted["target"].folder, changed)
    _change_weights(changed)
    folders = {name: model.folder for name, model in converted.items()}
    suite = tmp_path / "planted.yaml"
    prompts = ROOT / "suites" / "prompts" / "code.jsonl"
    suite.write_text(PLANTED.format(**folders, changed=changed, prompts=prompts))
    code, judged = verdicts(tmp_path, suite)
    assert code == 1
    assert judged["other-weights", "logprob_closeness"]["verdict"] == "fault"
    assert judged["other-weights", "greedy_equality"]["verdict"] != "certified"
    assert {judged["sound", check]["verdict"] for check in ("greedy_equality", "logprob_closeness")} == {"certified"}


def _change_weights(folder):
    """Noise of a fifth of their own spread on the weights of the head."""
    # imported here, because only the environment of the engine has it
    import openvino as ov

    from engine.backends.openvino_genai.graph import DecoderGraph, shape_of
    from engine.backends.process.convert import weights_of

    weights = weights_of(ROOT / "engine" / "bundled" / "target")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    noise = np.random.default_rng(0).normal(size=head.shape) * head.std() / 5
    shape = shape_of(json.loads((folder / "config.json").read_text()))
    graph = DecoderGraph(shape, {**weights, "lm_head.weight": head + noise})
    ov.save_model(graph.model(), folder / "openvino_model.xml", compress_to_fp16=False)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["result"]["files"] = digests(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
