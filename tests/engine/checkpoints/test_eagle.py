"""Folders of EAGLE heads: what is read, and the traps that are refused by name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from engine.core.errors import ModelError
from engine.heads.formats import eagle, eagle3, layout_of
from engine.heads.loading import load_head
from tests.engine.heads.tiny import config_of, document, random_tensors

ONE = document(num_hidden_layers=1, bias=True)
IDS = "eagle_aux_hidden_state_layer_ids"
THREE = document(num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=4)
KEPT = (1, 2, 5, 7)
LAYER = document(num_hidden_layers=1, vocab_size=8)
METHOD = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 4,
    "transformer_layer_config": LAYER,
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [METHOD]},
}


def floats(slots):
    shapes = {slot.published: slot.shape for slot in slots if not slot.optional}
    return {name: tensor.float() for name, tensor in random_tensors(shapes, 1).items()}


def tables(kept=KEPT):
    mask = torch.zeros(8, dtype=torch.bool)
    mask[list(kept)] = True
    return {"d2t": torch.tensor(kept) - torch.arange(len(kept)), "t2d": mask}


def one():
    return floats(eagle.slots(config_of(num_hidden_layers=1), bias=True))


def three(config=THREE, first="midlayer.", before=False):
    found = floats(each for each in eagle3.slots(eagle3.announced(config, "here", before), first))
    return {**found, **tables()}


def load(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return load_head(str(folder)).head


def refused(folder, config, tensors, words):
    with pytest.raises(ModelError, match=words) as raised:
        load(folder, config, tensors)
    assert "\n" not in str(raised.value)


def test_eagle_has_a_bias_and_no_first_norm(tmp_path):
    tensors = one()
    head = load(tmp_path, ONE, tensors)
    assert (head.layout, head.family, head.settings["vocabulary"]) == ("eagle", "eagle", 8)
    assert set(head.tensors) == set(tensors)
    assert "layers.0.input_layernorm.weight" not in tensors
    torch.testing.assert_close(head.tensors["fc.bias"], tensors["fc.bias"])


def test_eagle_s_embedding_may_be_there_and_old_rope_buffers_are_dropped(tmp_path):
    extra = {"embed_tokens.weight": torch.ones(8, 16), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    assert "embedding" in load(tmp_path, ONE, one() | extra).tensors


def test_eagle_tensors_must_be_the_announced_ones(tmp_path):
    whole = one()
    for name in ("fc.weight", "fc.bias", "layers.0.mlp.up_proj.weight"):
        refused(tmp_path, ONE, {k: v for k, v in whole.items() if k != name}, f"'{name}' is missing")
    refused(tmp_path, ONE | {"bias": False}, whole, "unexpected tensor 'fc.bias'")
    norm = {"layers.0.input_layernorm.weight": torch.ones(16)}
    refused(tmp_path, ONE, whole | norm, "unexpected tensor 'layers.0.input_layernorm.weight'")
    refused(tmp_path, ONE, whole | {"fc.weight": torch.ones(16, 48)}, r"'fc.weight' has shape \(16, 48\)")


def test_a_wrong_number_of_heads_is_an_error(tmp_path):
    refused(tmp_path, ONE | {"num_key_value_heads": 4}, one(), "'layers.0.self_attn.k_proj.weight' has shape")
    refused(tmp_path, ONE | {"num_attention_heads": 8, "head_dim": 4}, one(), "'layers.0.self_attn.q_proj.weight'")


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (ONE, "eagle"),
        (document(architectures=["EagleLlamaForCausalLM"]), "eagle"),
        (THREE, "eagle3"),
        (document(architectures=["LlamaForCausalLM"], draft_vocab_size=4), "eagle3"),
        (SPECULATORS, "eagle3_speculators"),
    ],
)
def test_layouts_are_told_apart(config, layout):
    assert layout_of(config).name == layout


def test_a_llama_is_no_head():
    assert layout_of(document(architectures=["LlamaForCausalLM"], attention_bias=False)) is None


@pytest.mark.parametrize("first", ["midlayer.", "layers.0."])
def test_eagle3_reads_both_names_of_its_layer_and_makes_ids_of_offsets(tmp_path, first):
    head = load(tmp_path, THREE, three(first=first))
    assert (head.layout, head.family, head.lossy) == ("eagle3", "eagle3", ())
    assert tuple(head.tensors["target_ids"].tolist()) == KEPT
    assert head.tensors["layers.0.self_attn.q_proj.weight"].shape == (16, 32)
    assert head.tensors["fc.weight"].shape == (16, 48)
    assert head.settings["layers"] is None
    assert head.settings["forms"][0].residual == "input"


def test_eagle3_lists_its_layers_at_the_top_or_in_eagle_config(tmp_path):
    for config in (THREE | {IDS: [0, 1]}, THREE | {"eagle_config": {IDS: [0, 1], "use_aux_hidden_state": True}}):
        head = load(tmp_path, config, three(config))
        assert head.settings["layers"] == (0, 1)
        assert head.tensors["fc.weight"].shape == (16, 32)
    refused(tmp_path, THREE | {IDS: [0, 1]}, three(), "'fc.weight' has shape")
    refused(tmp_path, THREE | {IDS: [0, -1]}, three(), f"{IDS} must be a list of layer numbers")


def test_target_ids_where_offsets_belong_are_named(tmp_path):
    absolute = {"d2t": torch.tensor(KEPT)}
    refused(tmp_path, THREE, three() | absolute, "'d2t' holds the target's ids; subtract 0, 1, 2")
    without = {name: each for name, each in three().items() if name != "t2d"}
    refused(tmp_path, THREE, without | absolute, "'d2t' holds the target's ids")  # 7 + 3 is no token


def test_tables_that_disagree_are_refused(tmp_path):
    refused(tmp_path, THREE, three() | {"t2d": tables((0, 2, 5, 7))["t2d"]}, "'t2d' does not mark the tokens")
    refused(tmp_path, THREE, three() | {"d2t": torch.tensor([1, 0, 0, 0])}, "'d2t' leads outside .* or twice to one")
    refused(tmp_path, THREE, three() | {"d2t": torch.tensor([1, 1, 3, 4]).int()}, "'d2t' is torch.int32")
    refused(tmp_path, THREE, {k: v for k, v in three().items() if k != "d2t"}, "'d2t' is missing")


def test_a_whole_vocabulary_needs_no_tables(tmp_path):
    config = THREE | {"draft_vocab_size": 8}
    tensors = {name: each for name, each in three(config).items() if name not in ("d2t", "t2d")}
    assert "target_ids" not in load(tmp_path, config, tensors).tensors


@pytest.mark.parametrize("key", ["norm_before_fc", "fc_norm", "parallel_drafting"])
def test_variants_that_are_not_computed_are_refused(tmp_path, key):
    refused(tmp_path, THREE | {"eagle_config": {key: True}}, three(), f"{key} is on")
    refused(tmp_path, THREE | {"eagle_config": {"use_aux_hidden_state": False}}, three(), "use_aux_hidden_state is off")


def test_speculators_norms_before_the_residual_unless_it_says_otherwise(tmp_path):
    head = load(tmp_path, SPECULATORS, three(LAYER | {"draft_vocab_size": 4}, "layers.0."))
    assert (head.layout, head.family, head.lossy) == ("eagle3_speculators", "eagle3", ())
    assert head.settings["forms"][0].residual == "normed"
    assert head.config["hidden_size"] == 16
    plain = load(tmp_path, SPECULATORS | {"norm_before_residual": False}, three(LAYER | {"draft_vocab_size": 4}))
    assert plain.settings["forms"][0].residual == "input"
    refused(tmp_path, {**SPECULATORS, "transformer_layer_config": None}, three(), "transformer_layer_config is missing")


def test_a_declared_lossy_acceptance_is_told(tmp_path):
    methods = [METHOD | {"verifier_accept_k": 3}, METHOD | {"accept_tolerance": 0.1}, METHOD]
    config = SPECULATORS | {"speculators_config": {"proposal_methods": methods}}
    head = load(tmp_path, config, three(LAYER | {"draft_vocab_size": 4}))
    assert head.lossy == ("verifier_accept_k 3 (greedy)", "accept_tolerance 0.1 (greedy)")
