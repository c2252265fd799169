"""The lean forward against transformers' own, on the same weights."""

import pytest
import torch

from engine.core.errors import CapacityError, ModelError
from engine.models.interface import TargetModel, WantedOutputs, chain_placement
from engine.models.numerics import REGISTRY, ROUNDED, load
from tests.support.lean_tensors import from_tensors
from tests.support.lean_variants import KINDS, LLAMA3, VARIANTS


def lean(network, dtype, mode="fast"):
    return from_tensors(network.config.to_dict(), network.state_dict(), dtype, numerics=load(mode))


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "overrides"), VARIANTS)
@pytest.mark.parametrize("mode", sorted(set(REGISTRY) - set(ROUNDED)))
def test_agrees_with_transformers_in_float32(mode, kind, overrides, make_network, largest_error):
    network = make_network(kind, **overrides)
    assert largest_error(lean(network, torch.float32, mode), network) < 1e-4


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_in_float64_once_transformers_is_truly_float64(kind, make_network, truly_float64, largest_error):
    network = truly_float64(make_network(kind, torch.float64))
    assert largest_error(lean(network, torch.float64), network) < 1e-10


@pytest.mark.medium
def test_float64_is_close_to_unpatched_transformers(make_network, largest_error):
    # transformers turns and norms in float32 whatever the dtype, so only its precision can be expected
    network = make_network("llama", torch.float64)
    assert largest_error(lean(network, torch.float64), network) < 1e-4


@pytest.mark.medium
def test_bfloat16_stays_near_float64(make_network, largest_error):
    network = make_network("qwen3", torch.float64)
    scale = network(torch.tensor([[3, 4, 5]])).logits.abs().max().item()
    error = largest_error(lean(network, torch.bfloat16), network)
    assert 1e-6 * scale < error < 0.1 * scale


def test_rows_of_a_larger_cache_do_not_touch_each_other(make_network, largest_error):
    network = make_network("llama")
    assert largest_error(lean(network, torch.float32), network, first_row=2, spare=1) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_have_the_ids_of_transformers(kind, make_network):
    network = make_network(kind)
    model = lean(network, torch.float32)
    tokens = [5, 9, 17, 3]
    cache = model.new_cache(1, 8)
    answer = model.forward(cache, chain_placement([tokens], [0], cache.trash), WantedOutputs(False, (0, 1, 2, 3)))
    with torch.no_grad():
        expected = network(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    assert answer.logits is None
    assert len(expected) == 4
    for index, state in enumerate(expected):
        torch.testing.assert_close(answer.hidden[index], state, atol=1e-4, rtol=0)


def test_only_wanted_values_come_back(make_network):
    model = lean(make_network("llama"), torch.float32)
    cache = model.new_cache(1, 8)
    answer = model.forward(cache, chain_placement([[1, 2]], [0], cache.trash), WantedOutputs())
    assert answer.logits.shape == (1, 2, 80)
    assert not answer.hidden
    assert not answer.logits.requires_grad


def test_is_a_target_model(make_network):
    model = lean(make_network("llama"), torch.float64)
    assert isinstance(model, TargetModel)
    assert (model.vocabulary, model.context, model.dtype) == (80, 128, torch.float64)


def test_weights_are_copies(make_network):
    network = make_network("llama")
    model = lean(network, torch.float32)
    with torch.no_grad():
        network.model.norm.weight.zero_()
    assert model.weights.norm.abs().sum() > 0


def test_a_cache_beyond_the_context_is_refused(make_network):
    model = lean(make_network("llama"), torch.float32)
    with pytest.raises(CapacityError, match="129 columns exceeds the model's context of 128"):
        model.new_cache(1, 129)


def test_a_foreign_cache_is_refused(make_network):
    model = lean(make_network("llama"), torch.float32)
    with pytest.raises(TypeError, match="new_cache"):
        model.forward(object(), chain_placement([[1]], [0], 8), WantedOutputs())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' has no lean forward .*loader: hf"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' .*loader: hf"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' .*loader: hf"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "rope_type 'llama3' needs low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"max_position_embeddings": None}, "max_position_embeddings must be a positive integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"vocab_size": 81}, r"tensor model.embed_tokens.weight has shape \[80, 32\], config.json asks for \[81, 32\]"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.self_attn.q_proj.weight is missing"),
        ({"num_hidden_layers": 2}, "tensor model.layers.2.* is unexpected"),
    ],
)
def test_unsupported_configurations_are_named(change, message, make_network):
    network = make_network("llama")
    with pytest.raises(ModelError, match=message):
        from_tensors(network.config.to_dict() | change, network.state_dict(), torch.float32)


@pytest.mark.medium
def test_rope_of_older_files_is_understood(make_network, largest_error):
    network = make_network("llama", rope_parameters=LLAMA3)
    document = network.config.to_dict()
    del document["rope_parameters"]
    document["rope_theta"] = LLAMA3["rope_theta"]
    document["rope_scaling"] = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    model = from_tensors(document, network.state_dict(), torch.float32)
    assert largest_error(model, network) < 1e-4


def test_a_stored_copy_of_a_tied_head_must_equal_the_embedding(make_network):
    network = make_network("llama", tie_word_embeddings=True)
    tensors = dict(network.state_dict())
    from_tensors(network.config.to_dict(), tensors, torch.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is unexpected"):
        from_tensors(network.config.to_dict(), tensors, torch.float32)


def test_a_quantised_tensor_is_refused(make_network):
    network = make_network("llama")
    tensors = dict(network.state_dict())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    with pytest.raises(ModelError, match=r"tensor model.norm.weight is torch.int8, not a plain float"):
        from_tensors(network.config.to_dict(), tensors, torch.float32)
