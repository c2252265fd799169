"""The heads' decoder against plain torch on whole sequences, in chains and in trees."""

import math

import pytest
import torch

from engine.core.errors import CapacityError
from engine.heads.checkpoint import take
from engine.heads.decoder import Decoder, LayerForm, layer_slots
from engine.models.interface import Placement, chain_placement
from engine.models.lean_weights import read_config
from tests.support.plain_decoder import straightforward

DOCUMENT = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "rms_norm_eps": 1e-5,
}
WIDE = LayerForm(("input_layernorm", "hidden_norm"))
FORMS = {
    "llama": (LayerForm(), LayerForm()),
    "eagle": (LayerForm((None,)),),
    "eagle3": (WIDE,),
    "eagle3_normed": (LayerForm(WIDE.norms, "normed"), LayerForm()),
}


def config_of(**changes):
    return read_config(DOCUMENT | changes, "test")


def random_tensors(config, forms, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for i, form in enumerate(forms):
        for slot in layer_slots(config, f"layers.{i}.", f"layers.{i}.", form):
            noise = torch.randn(slot.shape, generator=generator)
            found[slot.name] = 1 + 0.3 * noise if "norm" in slot.name else noise / math.sqrt(slot.shape[-1])
    return found


def made(name, **changes):
    config, forms = config_of(**changes), FORMS[name]
    tensors = random_tensors(config, forms)
    inputs = torch.randn(2, 9, config.hidden * len(forms[0].norms), generator=torch.Generator().manual_seed(1))
    return config, forms, tensors, inputs


@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen3"}, {"attention_bias": True}], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_ragged_chains_equal_the_whole_sequences(name, changes):
    config, forms, tensors, inputs = made(name, **changes)
    decoder = Decoder(config, tensors, forms)
    cache = decoder.new_cache(2, 12)
    whole = [straightforward(config, tensors, forms, row) for row in inputs]
    done = [0, 0]
    for counts in ([5, 3], [0, 4], [1, 1], [3, 1]):
        placement = chain_placement([[0] * count for count in counts], done, cache.trash)
        fed = torch.cat([row[start : start + n] for row, start, n in zip(inputs, done, counts, strict=True)])
        wanted = torch.cat([row[start : start + n] for row, start, n in zip(whole, done, counts, strict=True)])
        torch.testing.assert_close(decoder.forward(cache, placement, fed), wanted, rtol=1e-4, atol=1e-5)
        done = [start + n for start, n in zip(done, counts, strict=True)]
    assert done == [9, 9]


@pytest.mark.parametrize("name", FORMS)
def test_a_node_of_a_tree_sees_its_own_path_only(name):
    config, forms, tensors, inputs = made(name)
    decoder = Decoder(config, tensors, forms)
    cache = decoder.new_cache(1, 12)
    decoder.forward(cache, chain_placement([[0] * 5], [0], cache.trash), inputs[0, :5])
    visible = torch.ones(1, 3, 8, dtype=torch.bool)  # a child, its sibling, and the sibling's child
    visible[0, :, 5:] = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1]]).bool()
    columns = torch.tensor([[5, 6, 7]])
    placement = Placement(columns, torch.tensor([[5, 5, 6]]), columns, (3,), 8, visible)
    out = decoder.forward(cache, placement, inputs[0, 5:8])
    for nodes in ([0], [1, 2]):
        sequence = torch.cat([inputs[0, :5], inputs[0, [5 + node for node in nodes]]])
        wanted = straightforward(config, tensors, forms, sequence)[5:]
        torch.testing.assert_close(out[nodes], wanted, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_near():
    config, forms, tensors, inputs = made("eagle3")
    decoder = Decoder(config, tensors, forms, torch.bfloat16)
    cache = decoder.new_cache(1, 12)
    out = decoder.forward(cache, chain_placement([[0] * 9], [0], cache.trash), inputs[0])
    assert out.dtype is torch.bfloat16
    wanted = straightforward(config, tensors, forms, inputs[0])
    assert (out.float() - wanted).norm() < 0.02 * wanted.norm()


def test_a_cache_beyond_the_head_s_context_is_refused():
    config, forms, tensors, _ = made("eagle")
    with pytest.raises(CapacityError, match="exceeds the model's context of 40"):
        Decoder(config, tensors, forms).new_cache(1, 41)


def test_slots_rename_what_they_read():
    config = config_of()
    slots = layer_slots(config, "midlayer.", "layers.0.", WIDE)
    published = {slot.published: torch.zeros(slot.shape) for slot in slots}
    assert published["midlayer.self_attn.q_proj.weight"].shape == (24, 32)
    assert set(take(published, slots, "here")) == set(random_tensors(config, (WIDE,)))
