"""Adapters: the same on every machine, merged as PEFT merges them, and refused in one line."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core.errors import ModelError
from engine.models.files.adapters import CONFIG, STRENGTH, WEIGHTS, merge, open_adapter

NAME = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    random = torch.Generator().manual_seed(1)
    weights = {NAME: torch.randn(6, 4, generator=random), "model.norm.weight": torch.ones(4)}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def made(target, tmp_path, seed=1, name="one"):
    return open_adapter(name, f"made:{seed}", target, tmp_path)


def test_a_made_adapter_depends_on_its_seed_alone(target, tmp_path):
    one, again, other = (made(target, tmp_path / str(i), seed) for i, seed in enumerate((1, 1, 2)))
    assert one.sha256 == again.sha256 != other.sha256
    assert one.rank == 8


def test_merged_weights_are_the_sum_and_all_else_is_the_target_s(target, tmp_path):
    adapter, into = made(target, tmp_path), tmp_path / "merged"
    merge(target, adapter.folder, into)
    before, after = load_file(target / "model.safetensors"), load_file(into / "model.safetensors")
    factors = load_file(adapter.folder / WEIGHTS)
    down, up = (factors[f"base_model.model.{NAME.removesuffix('weight')}{x}.weight"] for x in ("lora_A", "lora_B"))
    assert torch.allclose(after[NAME], before[NAME] + up @ down, atol=1e-6)
    assert torch.equal(after["model.norm.weight"], before["model.norm.weight"])
    assert (into / "config.json").read_text() == "{}"
    size = (after[NAME] - before[NAME]).square().mean().sqrt() / before[NAME].square().mean().sqrt()
    assert STRENGTH / 2 < size < STRENGTH * 2


def test_alpha_over_r_is_the_factor(target, tmp_path):
    adapter, into = made(target, tmp_path), tmp_path / "merged"
    config = json.loads((adapter.folder / CONFIG).read_text())
    (adapter.folder / CONFIG).write_text(json.dumps(config | {"lora_alpha": 3 * config["r"]}))
    merge(target, adapter.folder, tmp_path / "thrice")
    (adapter.folder / CONFIG).write_text(json.dumps(config))
    merge(target, adapter.folder, into)
    before = load_file(target / "model.safetensors")[NAME]
    once, thrice = (load_file(tmp_path / each / "model.safetensors")[NAME] - before for each in ("merged", "thrice"))
    np.testing.assert_allclose(thrice.numpy(), 3 * once.numpy(), rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_dora": True}, "sets use_dora, which cannot be merged"),
        ({"rank_pattern": {"q_proj": 2}}, "sets rank_pattern"),
    ],
)
def test_an_adapter_that_would_be_merged_wrongly_is_refused(target, tmp_path, change, words):
    folder = made(target, tmp_path).folder
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=words):
        open_adapter("one", str(folder), target, tmp_path)


@pytest.mark.parametrize(("source", "words"), [("made:x", "no seed"), ("/nowhere", "name a folder in PEFT's format")])
def test_a_source_that_is_none_is_named(target, tmp_path, source, words):
    with pytest.raises(ModelError, match=words):
        open_adapter("one", source, target, tmp_path)


def test_an_adapter_of_another_target_is_refused(target, tmp_path):
    adapter = made(target, tmp_path)
    save_file({"other.weight": torch.ones(2)}, target / "model.safetensors")
    with pytest.raises(ModelError, match="the target has no matrix model"):
        merge(target, adapter.folder, tmp_path / "merged")
