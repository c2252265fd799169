"""MiMo's layout of MTP modules: what is read, what is refused, and a target written in it with its module."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core.errors import ModelError
from engine.heads.formats import layout_of
from engine.heads.formats.mtp import BEFORE_NORM, mimo_slots, swapped
from engine.heads.loading import load_head
from engine.models.decoder.lean import LeanModel
from engine.models.lean_weights import expected_shapes, read_config
from engine.models.loading import load_model
from engine.tools.export_mimo import combined, export, main
from tests.engine.heads.tiny import config_of, document, mtp_head, random_tensors, whole_forward
from tests.support.lean_tensors import build_weights
from tests.support.mtp_modules import Module, unweighted

MIMO = document(architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=2)
TEXT = [1, 5, 2, 7, 7, 3, 0, 4]


def published(count=2):
    shapes = {slot.published: slot.shape for slot in mimo_slots(config_of(model_type="qwen2"), count)}
    return {name: tensor.float() for name, tensor in random_tensors(shapes, 1).items()}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_modules_lie_beside_the_model_and_are_read_alone(tmp_path):
    tensors, output = published(), torch.ones(8, 16)
    beside = {"model.layers.1.mlp.up_proj.weight": torch.ones(24, 16), "model.norm.weight": torch.ones(16)}
    head = load_head(write(tmp_path, MIMO, tensors | beside | {"lm_head.weight": output})).head
    assert (head.layout, head.family, head.lossy, head.config["model_type"]) == ("mimo_mtp", "mtp", (), "qwen2")
    assert head.settings == {"modules": 2, "hidden": 16, "vocabulary": 8, BEFORE_NORM: True}
    pairs = {
        "modules.0.embedding_norm": "token_layernorm.weight",
        "modules.0.hidden_norm": "hidden_layernorm.weight",
        "modules.0.norm": "final_layernorm.weight",
        "modules.0.layers.0.self_attn.k_proj.bias": "self_attn.k_proj.bias",
    }
    for ours, theirs in pairs.items():
        assert torch.equal(head.tensors[ours], tensors[f"model.mtp_layers.0.{theirs}"])
    stored = tensors["model.mtp_layers.1.input_proj.weight"]
    assert torch.equal(head.tensors["modules.1.project"], torch.cat([stored[:, 16:], stored[:, :16]], 1))
    assert torch.equal(head.tensors["modules.1.head"], output)
    assert len(head.tensors) == len(tensors) + 2


def test_a_tied_model_s_module_uses_the_target_s_matrix(tmp_path):
    head = load_head(write(tmp_path, MIMO | {"tie_word_embeddings": True}, published())).head
    assert "modules.0.head" not in head.tensors


def test_both_architectures_are_recognised():
    assert layout_of(MIMO).name == "mimo_mtp"
    assert layout_of(MIMO | {"architectures": ["MiMoMTPModel"]}).name == "mimo_mtp"
    assert layout_of(MIMO | {"architectures": ["Qwen2ForCausalLM"]}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type must be mimo or qwen2, not 'llama'"),
        ({"num_nextn_predict_layers": "2"}, "num_nextn_predict_layers must be a whole number"),
        ({"num_nextn_predict_layers": 3}, r"tensor 'model\.mtp_layers\.2\.token_layernorm\.weight' is missing"),
        ({"num_nextn_predict_layers": 1}, r"unexpected tensor 'model\.mtp_layers\.1\."),
        ({"intermediate_size": 32}, r"gate_proj.weight' has shape \(24, 16\) instead of \(32, 16\)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        load_head(write(tmp_path, MIMO | changes, published()))


def test_an_output_matrix_of_another_shape_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"'lm_head\.weight' has shape \(4, 16\) instead of \(8, 16\)"):
        load_head(write(tmp_path, MIMO, published() | {"lm_head.weight": torch.ones(4, 16)}))


# written


def tiny(**changes):
    """A float32 target, and a module of a narrower layer for it."""
    config = read_config(document(intermediate_size=32, **changes), "tiny")
    weights = build_weights(config, random_tensors(expected_shapes(config), 5), torch.float32)
    return LeanModel(config, weights, (3,))


def read_back(folder, target, head):
    made = combined(target, head)
    return made, load_head(write(folder, *made)).head


def as_model(made):
    """The written target alone, by our qwen2."""
    written, tensors = made
    config = read_config(written, "written")
    own = {name: each for name, each in tensors.items() if ".mtp_layers." not in name}
    return LeanModel(config, build_weights(config, own, torch.float32))


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"model_type": "qwen2"}])
def test_the_written_target_says_what_the_target_says(changes):
    target = tiny(**changes)
    written = as_model(combined(target, mtp_head()))
    torch.testing.assert_close(whole_forward(written, TEXT)[0], whole_forward(target, TEXT)[0], atol=2e-6, rtol=1e-5)
    assert torch.equal(written.weights.norm, torch.ones(16))


def outputs(head, target, states):
    """[T, V] of the module on a text, by its definition in plain torch."""
    module = Module(0, head, read_config(head.config, "head"))
    module.target = target
    normed = module.states([(i, state, TEXT[i + 1]) for i, state in enumerate(states[:-1])])
    return normed @ module.tensors.get("head", target.weights.head).T


def test_a_module_under_a_norm_of_equal_weights_stays_what_it_was(tmp_path):
    target, head = tiny(), float_head()
    target = LeanModel(target.config, replace(target.weights, norm=torch.full((16,), 1.7)), (3,))
    made, found = read_back(tmp_path, target, head)
    wanted = outputs(head, target, whole_forward(target, TEXT)[1])
    got = outputs(found, as_model(made), whole_forward(unweighted(target), TEXT)[1])
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)


def test_under_other_weights_it_differs_by_a_factor_per_token_on_the_state_s_half(tmp_path):
    """The stated difference is the only one: with it made good, nothing is left."""
    target, head = tiny(), float_head()
    made, found = read_back(tmp_path, target, head)
    states, bare, norm = whole_forward(target, TEXT)[1], whole_forward(unweighted(target), TEXT)[1], target.weights.norm
    wanted = outputs(head, target, states)
    assert (outputs(found, as_model(made), bare) - wanted).abs().max() > 1e-3
    factors = norm.square().mean().sqrt() / states.square().mean(1).sqrt()

    def scaled(module_norm):
        """The module's norm of the state, times the factor."""
        return lambda name, x: module_norm(name, x) * (factors[: len(x), None] if name == "hidden_norm" else 1)

    module = Module(0, found, read_config(found.config, "head"))
    module.target, module.norm = as_model(made), scaled(module.norm)
    normed = module.states([(i, state, TEXT[i + 1]) for i, state in enumerate(bare[:-1])])
    torch.testing.assert_close(normed @ found.tensors["modules.0.head"].T, wanted, atol=2e-5, rtol=1e-5)


def float_head():
    head = mtp_head()
    return replace(head, tensors={name: each.float() for name, each in head.tensors.items()})


def changed(**settings):
    return replace(mtp_head(), **settings)


@pytest.mark.parametrize(
    ("target", "head", "message"),
    [
        ({"attention_bias": True}, {}, "the target has an output bias"),
        ({"mlp_bias": True}, {}, "the target has MLP biases"),
        ({"model_type": "qwen3", "head_dim": 4}, {}, "the target has norms of queries and keys"),
        ({"head_dim": 8}, {}, "the target has head_dim 8 at 4 heads"),
        ({"rms_norm_eps": 1e-6}, {}, "the module's eps is 1e-05, the target's is 1e-06"),
        ({}, {"family": "eagle"}, "a deepseek_mtp head cannot be written as MiMo's"),
        ({}, {"settings": {"modules": 2}}, "the head has 2 modules; vLLM runs MiMo's first one only"),
        ({}, {"settings": {"modules": 1, BEFORE_NORM: True}}, "a deepseek_mtp head cannot be written"),
        ({}, {"tensors": {"modules.0.head": torch.ones(1)}}, "the module has its own head"),
    ],
)
def test_what_the_layout_has_no_place_for_is_refused(target, head, message):
    with pytest.raises(ModelError, match=message):
        combined(tiny(**target), changed(**head))


def test_a_folder_is_written_with_the_tokenizer_and_read_again(tmp_path):
    out = tmp_path / "mimo"
    assert main(["--target", "bundled:target", "--head", "bundled:mtp", "--out", str(out)]) is None
    config, stored = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["eos_token_id"] == [0]
    assert (out / "tokenizer.json").is_file()
    assert all(tensor.dtype is torch.float32 for tensor in stored.values())
    head, bundled = load_head(str(out)).head, load_head("bundled:mtp").head
    project = bundled.tensors["modules.0.project"].float()
    assert torch.equal(swapped(stored["model.mtp_layers.0.input_proj.weight"]), project)
    gate = "modules.0.layers.0.mlp.gate_proj.weight"
    assert torch.equal(head.tensors[gate][:512], bundled.tensors[gate].float())
    assert not head.tensors[gate][512:].any()


@pytest.mark.medium
def test_a_model_that_runs_alone_is_no_module(tmp_path, capsys):
    with pytest.raises(ModelError, match="bundled:draft: a model that runs alone; give an MTP module"):
        export("bundled:target", "bundled:draft", tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["--target", "bundled:nothing", "--head", "bundled:mtp", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "no such bundled model" in capsys.readouterr().err
    assert load_model("bundled:target").model.weights.norm.all()
