"""Folders of DFlash drafters: what is read, and what is refused by its name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from engine.core.errors import ModelError
from engine.heads.formats import layout_of
from engine.heads.formats.dflash import dflash_slots
from engine.heads.loading import load_head
from tests.engine.heads.tiny import config_of, document, random_tensors

SECTION = {"mask_token_id": 7, "target_layer_ids": [0, 2]}
CONFIG = document(
    architectures=["DFlashDraftModel"],
    model_type="qwen3",
    head_dim=4,
    block_size=4,
    num_target_layers=3,
    dflash_config=SECTION,
)


@pytest.fixture
def tensors():
    slots = dflash_slots(config_of(model_type="qwen3", head_dim=4), 2)
    return {name: each.float() for name, each in random_tensors({s.published: s.shape for s in slots}, 1).items()}


def write(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_layer_i_means_the_output_of_layer_i(tmp_path, tensors):
    head = load_head(write(tmp_path, CONFIG, tensors)).head
    assert (head.layout, head.family) == ("dflash", "dflash")
    assert head.settings["states"] == (1, 3)
    assert (head.settings["block"], head.settings["mask"], head.settings["target_layers"]) == (4, 7, 3)
    assert torch.equal(head.tensors["fc"], tensors["fc.weight"])
    assert torch.equal(head.tensors["layers.1.self_attn.k_norm.weight"], tensors["layers.1.self_attn.k_norm.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 1}, "block_size must be a whole number of at least 2"),
        ({"num_target_layers": None}, "num_target_layers must be a positive integer"),
        ({"dflash_config": SECTION | {"mask_token_id": 8}}, "mask_token_id must be a token below 8"),
        ({"dflash_config": SECTION | {"target_layer_ids": [0, 3]}}, "target_layer_ids must be layers from 0 to 2"),
        ({"dflash_config": SECTION | {"target_layer_ids": [0]}}, r"'fc.weight' has shape \(16, 32\) instead of"),
        ({"num_hidden_layers": 3}, "tensor 'layers.2.self_attn.q_proj.weight' is missing"),
        ({"num_hidden_layers": 1}, "unexpected tensor 'layers.1."),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, tensors, changes, message):
    with pytest.raises(ModelError, match=message):
        load_head(write(tmp_path, CONFIG | changes, tensors))


def test_it_is_recognised_by_its_section():
    assert layout_of(CONFIG).name == "dflash"
    assert layout_of(document(block_size=4)) is None
