"""Small random models, and one sequence decoded by very different forwards, for the tests of `exact`."""

from dataclasses import dataclass

import torch

from engine.core.types import Tree
from engine.models.decoder.lean import LeanModel
from engine.models.interface import Placed, WantedOutputs, accepted_columns, chain_placement, place
from engine.models.lean_weights import expected_shapes, read_config
from tests.support.lean_tensors import build_weights

DOCUMENT = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}


@dataclass(frozen=True)
class Drafted:
    """A tree of 7 nodes: the true continuation lies on nodes 1, 2, 6, the others are noise."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] = (-1, -1, 1, 0, 2, 0, 2)
    path: tuple[int, ...] = (1, 2, 6)


def make(kind, dtype, numerics, seed=0):
    config = read_config({"model_type": kind, **DOCUMENT}, "test")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        draw = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * draw if name.endswith("norm.weight") else 0.2 * draw
    return LeanModel(config, build_weights(config, tensors, dtype), numerics=numerics)


def some_tokens(count, vocabulary, seed=1):
    return torch.randint(0, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def by_chains(model, tokens, width, capacity=None):
    """Logits [T, V], `width` tokens at a time."""
    cache = model.new_cache(1, capacity or len(tokens) + 3)
    rows = []
    for start in range(0, len(tokens), width):
        placement = chain_placement([tokens[start : start + width]], [start], cache.trash)
        rows.append(model.forward(cache, placement, WantedOutputs()).logits[0])
    return torch.cat(rows)


def by_trees(model, tokens):
    """The same by trees whose accepted path does not lie side by side."""
    cache = model.new_cache(1, len(tokens) + 8)
    prompt = chain_placement([tokens[:5]], [0], cache.trash)
    rows, done = [model.forward(cache, prompt, WantedOutputs()).logits[0]], 6
    while done + 3 <= len(tokens):
        drafted = noisy(tokens[done : done + 3], model.vocabulary)
        placement = place([Placed(tokens[done - 1], done, Tree(drafted.tokens, drafted.parents))], cache.trash)
        answer = model.forward(cache, placement, WantedOutputs()).logits[0]
        rows.append(answer[[0, *(1 + node for node in drafted.path)]])
        cache.commit(0, accepted_columns(done, drafted.path), accepted_columns(done, range(3)))
        done += 4
    return torch.cat(rows)


def noisy(true, vocabulary):
    tokens = [(each * 7 + 3) % vocabulary for each in range(7)]
    for node, token in zip(Drafted.path, true, strict=True):
        tokens[node] = token
    return Drafted(tuple(tokens))


def by_batch(model, rows, step):
    """Logits of each row [T, V]: a ragged batch in which row i moves by 1 to `step` tokens at a time."""
    cache = model.new_cache(len(rows), max(map(len, rows)) + 9)
    answers = [[] for _ in rows]
    starts, turn = [0] * len(rows), 0
    while any(start < len(row) for start, row in zip(starts, rows, strict=True)):
        new = [
            row[start : start + 1 + (turn + i) % step] for i, (start, row) in enumerate(zip(starts, rows, strict=True))
        ]
        logits = model.forward(cache, chain_placement(new, starts, cache.trash), WantedOutputs()).logits
        for i, tokens in enumerate(new):
            answers[i].append(logits[i, : len(tokens)])
            starts[i] += len(tokens)
        turn += 1
    return [torch.cat(parts) for parts in answers]
