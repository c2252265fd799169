"""The packaged suites on the real engine, and a fault that is planted beside it."""

import json
import shutil

import numpy as np
import pytest

from engine.backends.process.convert import MANIFEST, digests
from tests.support.engine_suites import ROOT, silent, uncertified, verdicts

pytestmark = pytest.mark.ort
HEAD = "lm_head.MatMul.weight"
PLANTED = """
version: 1
name: planted
backend: onnxruntime_genai
batch_size: 1
engine: {{threads: 1, onnx: {{target: {target}, draft: {draft}}}}}
models: {{target: "bundled:target", draft: "bundled:medium_draft"}}
workloads: [{{name: code, prompts: {prompts}, limit: 6}}]
sampling: {{max_new_tokens: 48, temperature: 0}}
arms:
  - name: sound
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    checks: [greedy_equality, anchor]
  - name: other-weights
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    engine: {{threads: 1, onnx: {{target: {changed}, draft: {draft}}}}}
    checks: [greedy_equality, anchor]
"""


def test_greedy_decoding_is_certified(tmp_path):
    code, found = verdicts(tmp_path, "suites/onnxruntime/greedy.yaml")
    assert uncertified(found) == {}
    assert {arm for arm, _ in found} == {"draft-model", "ngram"}
    assert code == 0


def test_top_p_keeps_tokens_that_the_nucleus_lacks(tmp_path):
    """The engine stops where a bound on the tail is met, which is beyond the nucleus of larger vocabularies."""
    code, found = verdicts(tmp_path, "suites/onnxruntime/sampling.yaml")
    assert code == 1
    faults = {key for key, verdict in uncertified(found).items() if verdict == "fault"}
    assert faults == {("top-p", "accounting")}
    assert all("outside the support" in each["message"] for each in found["top-p", "accounting"]["findings"])


@pytest.mark.parametrize("name", ["parameters", "exact_law"])
def test_every_parameter_and_the_exact_law_are_certified(tmp_path, name):
    code, judged = verdicts(tmp_path, f"suites/onnxruntime/{name}.yaml")
    assert uncertified(judged) == {}
    assert silent(tmp_path) == set()
    assert code == 0


def test_a_speculating_engine_with_other_weights_is_caught(tmp_path, converted):
    """The manifest agrees with the changed files: only the tokens and the rows tell."""
    changed = tmp_path / "changed"
    shutil.copytree(converted["target"].folder, changed)
    _change_weights(changed)
    folders = {name: each.folder for name, each in converted.items()}
    suite = tmp_path / "planted.yaml"
    prompts = ROOT / "suites" / "prompts" / "code.jsonl"
    suite.write_text(PLANTED.format(**folders, changed=changed, prompts=prompts))
    code, found = verdicts(tmp_path, suite)
    assert code == 1
    assert {check: found["other-weights", check]["verdict"] for check in ("greedy_equality", "anchor")} == {
        "greedy_equality": "fault",
        "anchor": "fault",
    }
    assert found["sound", "greedy_equality"]["verdict"] != "fault"
    assert found["sound", "anchor"]["verdict"] != "fault"


def _change_weights(folder):
    """Noise of a fifth of their own spread on the weights of the head."""
    path = folder / "model.onnx"
    # imported here, because only the environment of the engine has it
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    (head,) = (each for each in model.graph.initializer if each.name == HEAD)
    weights = numpy_helper.to_array(head)
    noise = np.random.default_rng(0).normal(size=weights.shape) * weights.std() / 5
    head.CopyFrom(numpy_helper.from_array((weights + noise).astype(np.float32), HEAD))
    (folder / "model.onnx.data").unlink()
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["result"]["files"] = digests(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
