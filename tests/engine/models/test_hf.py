"""Unmodified transformers models behind our protocol, against their own plain forward."""

import pytest
import torch
import transformers

from engine.core.errors import CapacityError, ModelError
from engine.models.hf import HfModel, require_honest_masks
from engine.models.interface import TargetModel, WantedOutputs, chain_placement

KINDS = ("llama", "qwen2", "qwen3", "gpt2")


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_a_plain_forward(kind, make_network, largest_error):
    network = make_network(kind)
    assert largest_error(HfModel(network), network) < 1e-4


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_in_float64(kind, make_network, largest_error):
    network = make_network(kind, torch.float64)
    assert largest_error(HfModel(network), network, first_row=1) < 1e-10


@pytest.mark.medium
def test_eager_attention_sees_the_same_mask(make_network, largest_error):
    network = make_network("llama")
    network.set_attn_implementation("eager")
    assert network.config._attn_implementation == "eager"
    assert largest_error(HfModel(network), network) < 1e-4


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_hidden_states_without_logits(kind, make_network):
    network = make_network(kind)
    model = HfModel(network)
    cache = model.new_cache(1, 8)
    answer = model.forward(cache, chain_placement([[5, 9, 17]], [0], cache.trash), WantedOutputs(False, (0, 2, 3)))
    with torch.no_grad():
        expected = network(torch.tensor([[5, 9, 17]]), output_hidden_states=True).hidden_states
    assert answer.logits is None
    assert set(answer.hidden) == {0, 2, 3}
    for index, state in answer.hidden.items():
        torch.testing.assert_close(state, expected[index], atol=1e-5, rtol=0)


def test_is_a_target_model(make_network):
    model = HfModel(make_network("gpt2"), eos_ids=(2,))
    assert isinstance(model, TargetModel)
    assert (model.vocabulary, model.context, model.eos_ids) == (80, 128, (2,))


def test_a_cache_beyond_the_context_is_refused(make_network):
    with pytest.raises(CapacityError, match="129 columns exceeds"):
        HfModel(make_network("gpt2")).new_cache(1, 129)


def test_a_foreign_cache_is_refused(make_network):
    with pytest.raises(TypeError, match="new_cache"):
        HfModel(make_network("gpt2")).forward(object(), chain_placement([[1]], [0], 8), WantedOutputs())


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_its_placement_is_refused(ignored, make_network, monkeypatch):
    network = make_network("llama")
    model = HfModel(network)
    inner = network.model.forward

    def deaf(*args, **kwargs):
        given = kwargs[ignored]
        if kwargs["use_cache"]:
            kwargs[ignored] = torch.zeros_like(given)
        return inner(*args, **kwargs)

    monkeypatch.setattr(network.model, "forward", deaf)
    with pytest.raises(ModelError, match="ignores masks, positions or cache columns"):
        require_honest_masks(model, "config.json")


def test_a_sliding_window_inside_the_context_is_refused(make_network):
    network = make_network("mistral", sliding_window=16)
    with pytest.raises(ModelError, match="sliding_window 16 is smaller than the context"):
        HfModel(network)


@pytest.mark.medium
def test_a_window_as_long_as_the_context_is_full_attention(make_network, largest_error):
    network = make_network("mistral", sliding_window=128)
    assert largest_error(HfModel(network), network) < 1e-4


def test_a_model_that_cannot_run_on_placed_tokens_is_refused(make_network, monkeypatch):
    network = make_network("llama")
    model = HfModel(network)

    def two_dimensions(*_, **kwargs):
        batch, width = kwargs["attention_mask"].shape
        raise AssertionError(batch, width)

    monkeypatch.setattr(network.model, "forward", two_dimensions)
    with pytest.raises(ModelError, match="LlamaForCausalLM cannot run on placed tokens"):
        require_honest_masks(model, "config.json")


def test_a_model_without_position_ids_is_refused():
    sizes = {"vocab_size": 80, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    with pytest.raises(ModelError, match="BloomForCausalLM takes no position_ids"):
        HfModel(transformers.BloomForCausalLM(transformers.BloomConfig(**sizes)))
