"""Running a part of a model: left-out sublayers add nothing, everything else is as it was."""

import pytest
import torch

from engine.core.errors import InvalidRequest
from engine.models.hf import HfModel
from engine.models.interface import Sublayers, WantedOutputs, chain_placement
from engine.models.scripted import ScriptedModel, table_script
from tests.support.lean_tensors import from_tensors

LAYERS = 3
EVERY = tuple(range(LAYERS))
TOKENS = [5, 9, 17, 3, 60]


def lean(network):
    return from_tensors(network.config.to_dict(), network.state_dict(), torch.float64)


def read(model, part=None, hidden=()):
    cache = model.new_cache(1, 8)
    answer = model.forward(cache, chain_placement([TOKENS], [0], cache.trash), WantedOutputs(hidden=hidden, part=part))
    return answer, cache


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("layer", EVERY)
@pytest.mark.parametrize("sublayer", ["attention", "ffn"])
def test_a_left_out_sublayer_is_one_whose_output_is_zero(kind, layer, sublayer, make_network):
    network = make_network(kind, torch.float64)
    block = network.model.layers[layer]
    silenced = block.self_attn.o_proj if sublayer == "attention" else block.mlp.down_proj
    rest = tuple(index for index in EVERY if index != layer)
    part = Sublayers(rest, EVERY) if sublayer == "attention" else Sublayers(EVERY, rest)
    got = read(lean(network), part)[0].logits
    whole = read(lean(network))[0].logits
    with torch.no_grad():
        silenced.weight.zero_()
    torch.testing.assert_close(got, read(lean(network))[0].logits, atol=1e-12, rtol=0)
    assert (got - whole).abs().max() > 1e-3


@pytest.mark.parametrize("exit_layer", [1, 2])
def test_the_first_layers_end_in_the_final_norm_and_head(exit_layer, make_network):
    network = make_network("llama")
    kept = tuple(range(exit_layer))
    with torch.no_grad():
        states = network(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
        expected = network.lm_head(network.model.norm(states[exit_layer]))
    model = from_tensors(network.config.to_dict(), network.state_dict(), torch.float32)
    got = read(model, Sublayers(kept, kept))[0].logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_naming_every_sublayer_is_the_whole_model(make_network):
    model = lean(make_network("llama"))
    (named, _), (whole, _) = read(model, Sublayers(EVERY, EVERY), (0, 1, 2, 3)), read(model, None, (0, 1, 2, 3))
    assert torch.equal(named.logits, whole.logits)
    assert all(torch.equal(named.hidden[index], whole.hidden[index]) for index in range(LAYERS + 1))


def test_a_left_out_attention_writes_no_keys_and_values(make_network):
    _, cache = read(lean(make_network("llama")), Sublayers((0, 2), EVERY))
    written = [bool(cache.keys[index].any()) and bool(cache.values[index].any()) for index in EVERY]
    assert written == [True, False, True]
    assert not cache.keys[1].any()
    assert not cache.values[1].any()


@pytest.mark.parametrize("part", [Sublayers((0, 3), EVERY), Sublayers(EVERY, (-1,))])
def test_a_layer_that_is_not_there_is_refused(part, make_network):
    with pytest.raises(InvalidRequest, match=r"names layer (3|-1), but the model's layers are 0 to 2"):
        read(lean(make_network("llama")), part)


def test_models_that_run_whole_only_say_so(make_network):
    transformers, scripted = HfModel(make_network("llama")), ScriptedModel(table_script(1, 80), 80)
    for model, message in ((transformers, "use loader: lean"), (scripted, "without a partial script")):
        assert model.divisible == 0
        with pytest.raises(InvalidRequest, match=message):
            read(model, Sublayers((0,), (0,)))


def test_a_scripted_model_follows_its_partial_script():
    whole, partial = table_script(1, 80), table_script(2, 80)
    model = ScriptedModel(whole, 80, partial=partial)
    assert model.divisible > 0
    for script, part in ((whole, None), (partial, Sublayers((0,), ()))):
        torch.testing.assert_close(
            read(model, part)[0].logits[0, -1], torch.from_numpy(script(tuple(TOKENS))), atol=0, rtol=0
        )
