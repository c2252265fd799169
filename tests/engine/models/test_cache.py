"""Commits in the slot cache, and which configurations are refused."""

import pytest
import torch

from engine.core.errors import CapacityError, ModelError
from engine.models.cache import CacheShape, TensorSlotCache, require_rollback

PLAIN = {"model_type": "llama", "num_hidden_layers": 4, "max_position_embeddings": 4096}


def filled():
    cache = TensorSlotCache(CacheShape(layers=2, rows=3, kv_heads=2, capacity=8, head_dim=4), torch.float32)
    columns = torch.arange(9.0)[:, None]
    for layer in range(2):
        for row in range(3):
            cache.keys[layer][row] = columns + 100 * row + 1000 * layer
            cache.values[layer][row] = -(columns + 100 * row + 1000 * layer)
    return cache


def content(cache, row, layer=0):
    return cache.keys[layer][row, 1, :, 2].tolist()


def test_commit_moves_every_layer_of_one_row_only():
    cache = filled()
    cache.commit(1, (3, 5, 6), (3, 4, 5))
    assert content(cache, 1) == [100, 101, 102, 103, 105, 106, 106, 107, 108]
    assert content(cache, 1, layer=1) == [1100, 1101, 1102, 1103, 1105, 1106, 1106, 1107, 1108]
    assert cache.values[1][1, 0, :, 0].tolist() == [-x for x in content(cache, 1, layer=1)]
    assert content(cache, 0) == list(range(9))
    assert content(cache, 2) == [200.0 + i for i in range(9)]


def test_commit_reads_before_it_writes():
    cache = filled()
    cache.commit(0, (4, 3), (3, 4))
    assert content(cache, 0) == [0, 1, 2, 4, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [((1,), (1, 2), "1 source columns for 2 target"), ((8,), (0,), "column 8 is outside"), ((0,), (-1,), "column -1")],
)
def test_commit_outside_the_cache_is_refused(source, target, message):
    with pytest.raises(CapacityError, match=message):
        filled().commit(0, source, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2'"),
        ({"model_type": "rwkv"}, "model_type 'rwkv'"),
        ({"model_type": "qwen3_next"}, "model_type 'qwen3_next'"),
        ({"model_type": "new", "mamba_d_state": 16}, "mamba_d_state declares a recurrent state"),
        (
            {"model_type": "new", "layer_types": ["full_attention", "linear_attention"]},
            "layer_types .*linear_attention",
        ),
        ({"model_type": "new", "layers_block_type": ["mamba", "attention"]}, "layers_block_type .*mamba"),
        ({"model_type": "mistral", "sliding_window": 1024}, r"sliding_window 1024 .*context \(4096\)"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512}, "sliding_window 512"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512}, "sliding_window 512"),
        ({"attention_chunk_size": 1024}, "attention_chunk_size"),
    ],
)
def test_state_that_cannot_be_rolled_back_is_named(change, message):
    with pytest.raises(ModelError, match=message):
        require_rollback(PLAIN | change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "qwen2", "sliding_window": 512},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 4},
        {"layer_types": ["full_attention"] * 4, "sliding_window": 512},
        {"model_type": "new", "mamba_d_state": None},
    ],
)
def test_full_attention_is_let_through(change):
    require_rollback(PLAIN | change)
