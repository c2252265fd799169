"""A model elsewhere than on the CPU: torch's meta device computes no numbers, but refuses to mix devices."""

import pytest
import torch

from engine.core.errors import ModelError
from engine.core.types import Tree
from engine.models import numerics
from engine.models.cache import CacheShape
from engine.models.decoder.lean import LeanModel
from engine.models.interface import Placed, WantedOutputs, chain_placement, place
from engine.models.lean_weights import read_config
from engine.models.numerics.devices import ask_for_stable_kernels, moved, usable_device
from tests.support.lean_tensors import build_weights

META = torch.device("meta")


CPU_ONLY = ("ordered", "int8")


def elsewhere(network, mode):
    config = read_config(network.config.to_dict(), "config.json")
    weights = build_weights(config, network.state_dict(), torch.float32, META)
    return LeanModel(config, weights, numerics=numerics.load(mode))


@pytest.mark.medium
@pytest.mark.parametrize("mode", sorted(set(numerics.REGISTRY) - set(CPU_ONLY)))
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_every_tensor_of_a_forward_is_on_the_models_device(kind, mode, make_network):
    model = elsewhere(make_network(kind), mode)
    cache = model.new_cache(2, 60)
    ragged = chain_placement([[1, 2, 3], [4]], [5, 9], cache.trash)
    answer = model.forward(cache, ragged, WantedOutputs(hidden=(0, 1, 3)))
    assert answer.logits.device == META
    assert answer.logits.shape[:2] == (2, 3)
    assert all(hidden.device == META for hidden in answer.hidden.values())
    tree = Tree((7, 8, 9), (-1, -1, 0))
    assert model.forward(cache, place([Placed(3, 9, tree), None], cache.trash), WantedOutputs()).logits.device == META
    cache.commit(0, (11, 12), (10, 11))


@pytest.mark.parametrize("mode", CPU_ONLY)
def test_a_mode_of_the_cpu_refuses_another_device(mode, make_network):
    with pytest.raises(ModelError, match=f"numerics {mode}: no product for float32 on this meta"):
        elsewhere(make_network("llama"), mode)


def test_a_tensor_left_behind_is_noticed(make_network):
    model = elsewhere(make_network("llama"), "tiled")
    here = model.numerics.new_cache(CacheShape(3, 1, 2, 60, 8), torch.float32)
    with pytest.raises((RuntimeError, NotImplementedError)):
        model.forward(here, chain_placement([[1]], [0], here.trash), WantedOutputs())


def test_moved_goes_through_dataclasses_and_sequences():
    pads = Placed(1, 2, Tree((3,), (-1,)))
    found = moved([(torch.ones(2), 5), pads], META)
    assert found[0][0].device == META
    assert found[0][1] == 5
    assert found[1] == pads


def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(ModelError, match=r"models.target: device 'abacus' cannot be used .*; use cpu"):
        usable_device("abacus", "models.target")
    assert usable_device("cpu", "x") == torch.device("cpu")


def test_settings_of_a_gpu_are_left_alone_on_a_cpu():
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ask_for_stable_kernels(torch.device("cpu"))
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction == before
