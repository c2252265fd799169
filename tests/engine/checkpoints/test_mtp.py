"""Folders of MTP modules: what is read, and what is refused by its name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from engine.core.errors import ModelError
from engine.heads.formats import layout_of
from engine.heads.formats.mtp import deepseek_slots, qwen3_next_slots
from engine.heads.loading import load_head
from tests.engine.heads.tiny import config_of, document, random_tensors

DEEPSEEK = document(architectures=["DeepSeekMTPModel"], num_nextn_predict_layers=2)
QWEN3_NEXT = document(architectures=["Qwen3NextMTP"], model_type="qwen3", head_dim=4)


def published(slots, optional=False):
    shapes = {slot.published: slot.shape for slot in slots if optional or not slot.optional}
    return {name: tensor.float() for name, tensor in random_tensors(shapes, 1).items()}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def deepseek():
    return published(deepseek_slots(config_of(), 2))


def test_deepseek_s_modules_are_numbered_after_the_model_s_layers(tmp_path, deepseek):
    head = load_head(write(tmp_path, DEEPSEEK, deepseek)).head
    assert (head.layout, head.family, head.lossy) == ("deepseek_mtp", "mtp", ())
    assert head.settings == {"modules": 2, "hidden": 16, "vocabulary": 8}
    pairs = {
        "modules.0.embedding_norm": "model.layers.2.enorm.weight",
        "modules.0.hidden_norm": "model.layers.2.hnorm.weight",
        "modules.1.project": "model.layers.3.eh_proj.weight",
        "modules.1.norm": "model.layers.3.shared_head.norm.weight",
        "modules.1.layers.0.self_attn.q_proj.weight": "model.layers.3.self_attn.q_proj.weight",
    }
    for ours, theirs in pairs.items():
        assert torch.equal(head.tensors[ours], deepseek[theirs])
    assert not any(name.endswith((".embedding", ".head")) for name in head.tensors)


def test_a_module_s_own_embedding_and_head_are_kept(tmp_path):
    tensors = published(deepseek_slots(config_of(), 1), optional=True)
    head = load_head(write(tmp_path, DEEPSEEK | {"num_nextn_predict_layers": 1}, tensors)).head
    assert torch.equal(head.tensors["modules.0.embedding"], tensors["model.layers.2.embed_tokens.weight"])
    assert torch.equal(head.tensors["modules.0.head"], tensors["model.layers.2.shared_head.head.weight"])


def test_the_model_s_own_tensors_in_the_same_folder_are_left_alone(tmp_path, deepseek):
    beside = {"model.embed_tokens.weight": torch.ones(8, 16), "model.layers.1.mlp.up_proj.weight": torch.ones(24, 16)}
    head = load_head(write(tmp_path, DEEPSEEK, deepseek | beside)).head
    assert len(head.tensors) == len(deepseek)


def test_qwen3_next_s_names(tmp_path):
    config = config_of(model_type="qwen3", head_dim=4)
    tensors = published(qwen3_next_slots(config))
    assert "mtp.layers.0.self_attn.q_norm.weight" in tensors
    head = load_head(write(tmp_path, QWEN3_NEXT, tensors)).head
    assert (head.layout, head.family, head.settings["modules"]) == ("qwen3_next_mtp", "mtp", 1)
    pairs = {"project": "fc", "embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden"}
    for ours, theirs in pairs.items():
        assert torch.equal(head.tensors[f"modules.0.{ours}"], tensors[f"mtp.{theirs}.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 512, "model_type": "deepseek_v3"}, "kv_lora_rank: DeepSeek's latent attention"),
        ({"n_routed_experts": 8}, "n_routed_experts: layers with experts"),
        ({"num_nextn_predict_layers": "2"}, "num_nextn_predict_layers must be a whole number"),
        ({"num_nextn_predict_layers": 3}, "tensor 'model.layers.4.enorm.weight' is missing"),
        ({"num_nextn_predict_layers": 1}, "unexpected tensor 'model.layers.3.eh_proj.weight'"),
        ({"num_hidden_layers": 1}, "tensor 'model.layers.1.enorm.weight' is missing|unexpected tensor"),
        ({"intermediate_size": 32}, r"gate_proj.weight' has shape \(24, 16\) instead of \(32, 16\)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, deepseek, changes, message):
    with pytest.raises(ModelError, match=message):
        load_head(write(tmp_path, DEEPSEEK | changes, deepseek))


def test_an_unknown_tensor_is_refused(tmp_path, deepseek):
    with pytest.raises(ModelError, match=r"unexpected tensor 'model\.layers\.2\.bonus\.weight'"):
        load_head(write(tmp_path, DEEPSEEK, deepseek | {"model.layers.2.bonus.weight": torch.ones(1)}))


def test_the_layer_that_qwen3_next_itself_has_is_refused(tmp_path):
    with pytest.raises(ModelError, match="'qwen3_next' has gated attention"):
        load_head(write(tmp_path, QWEN3_NEXT | {"model_type": "qwen3_next"}, {"mtp.fc.weight": torch.ones(1)}))


def test_a_whole_model_is_no_head():
    """A model published with modules inside still runs alone."""
    assert layout_of(document(architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=1)) is None
    assert layout_of(document(architectures=["LlamaForCausalLM"])) is None
    assert layout_of(document(num_nextn_predict_layers=1)).name == "deepseek_mtp"
