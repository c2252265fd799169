"""Weights are fused layer by layer from views of a checkpoint, and a view that changed is refused."""

import gc
import weakref

import pytest
import torch
from torch.testing import assert_close

from engine.core.errors import ModelError
from engine.models.decoder.fused_weights import WeightFormat, mapped_weights
from engine.models.decoder.lean import LeanModel
from engine.models.lean_weights import expected_shapes, read_config
from engine.models.numerics.devices import CPU
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine
from engine.models.numerics.ordered.ordered import OrderedNumerics
from engine.models.numerics.ordered.panels import panels
from tests.engine.heads.tiny import random_tensors
from tests.support.lean_tensors import build_weights

DOCUMENT = {
    "model_type": "qwen2",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def config():
    return read_config(DOCUMENT, "config.json")


@pytest.fixture
def tensors(config):
    return random_tensors(expected_shapes(config), 5)


def mapped(config, tensors, dtype=torch.float32):
    return mapped_weights(config, tensors, WeightFormat(dtype, CPU), "folder")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_are_the_same_whenever_they_are_fused(config, tensors, dtype):
    weights, built = mapped(config, tensors, dtype), build_weights(config, tensors, dtype)
    for _ in range(2):
        layers = list(weights.layers)
        assert len(layers) == config.layers
        for ours, theirs in zip(layers, built.layers, strict=True):
            assert_close(ours.qkv.weight, theirs.qkv.weight, rtol=0, atol=0)
            assert_close(ours.qkv.bias, theirs.qkv.bias, rtol=0, atol=0)
            assert_close(ours.down.weight, theirs.down.weight, rtol=0, atol=0)
    first = torch.cat([tensors[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert_close(next(iter(weights.layers)).qkv.weight, first.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp.down_proj.weight", "self_attn.k_proj.bias", "input_layernorm.weight"])
def test_a_layer_that_changed_after_it_was_read_is_refused(config, tensors, name):
    weights = mapped(config, tensors)
    model = LeanModel(config, weights)
    tensors[f"model.layers.1.{name}"].view(-1)[3] += 1e-3
    with pytest.raises(ModelError, match="folder: its weights changed after they were loaded; load the model again"):
        list(model.weights.layers)


@pytest.mark.parametrize("numerics", [OrderedNumerics(), FastNumerics()])
def test_a_model_whose_products_have_panels_keeps_no_second_copy(config, tensors, numerics, monkeypatch):
    if isinstance(numerics, FastNumerics) and panels(Affine(torch.zeros(32, 32), None)) is None:
        pytest.skip("this processor has no panels in float32, so products of fast read the weights themselves")
    fused = []
    own = WeightFormat.own

    def remembered(kind, *parts):
        made = own(kind, *parts)
        fused.append((made.ndim, weakref.ref(made)))
        return made

    monkeypatch.setattr(WeightFormat, "own", remembered)
    model = LeanModel(config, mapped(config, tensors), numerics=numerics)
    gc.collect()
    kept = [made() for ndim, made in fused if ndim == 2 and made() is not None]
    assert sum(ndim == 2 for ndim, _ in fused) > 2
    # panels read neither; the embedding and the head of a model that does not tie them stay
    assert len(kept) == 2
    assert {id(each) for each in kept} == {id(model.weights.embedding), id(model.weights.head)}
