"""Where the tokens of a step go, for chains, trees and ragged batches."""

import numpy as np
import pytest
import torch

from engine.core.trees import ancestors, depths, path, path_tokens
from engine.core.types import Tree
from engine.models.interface import Placed, WantedOutputs, accepted_columns, chain_placement, place, place_trees
from engine.models.scripted import ScriptedModel

TRASH = 40


def random_tree(rng, count):
    parents = tuple(int(rng.integers(-1, node)) if node else -1 for node in range(count))
    return Tree(tuple(int(token) for token in rng.integers(0, 9, count)), parents)


def real(placement):
    return placement.slots != TRASH


@pytest.mark.parametrize("lengths", [[3], [0, 5], [2, 0, 4], [0, 0]])
def test_a_tree_that_is_a_chain_is_placed_like_a_chain(lengths):
    steps = [Placed(7, 4 + 3 * i, Tree.chain(tuple(range(n)))) for i, n in enumerate(lengths)]
    steps.insert(1, None)
    chain, tree = place(steps, TRASH), place_trees(steps, TRASH)
    for name in ("tokens", "positions", "slots"):
        assert torch.equal(getattr(chain, name), getattr(tree, name)), name
    for b, t in real(chain).nonzero().tolist():
        assert torch.equal(chain.visible[b, t], tree.visible[b, t])
    assert chain.visible.shape == tree.visible.shape


@pytest.mark.parametrize("seed", range(8))
def test_every_node_sees_the_committed_columns_and_its_own_path(seed):
    rng = np.random.default_rng(seed)
    steps = [None if rng.random() < 0.2 else Placed(3, int(rng.integers(1, 9)), random_tree(rng, n)) for n in (5, 2, 7)]
    steps.append(Placed(8, 3, Tree((1, 2), (-1, -1))))
    placement = place(steps, TRASH)
    assert placement.visible.any(-1).all(), "every query sees a column, padding too"
    for b, step in enumerate(steps):
        if step is None:
            assert (placement.slots[b] == TRASH).all()
            continue
        n, count = step.committed, len(step.tree)
        assert placement.tokens[b, : count + 1].tolist() == [step.last, *step.tree.tokens]
        assert placement.slots[b].tolist() == [*range(n - 1, n + count)] + [TRASH] * (
            placement.slots.shape[1] - count - 1
        )
        assert placement.positions[b, : count + 1].tolist() == [n - 1, *(n - 1 + depth for depth in depths(step.tree))]
        for node in range(-1, count):
            columns = {*range(n), *accepted_columns(n, path(step.tree, node))}
            assert set(placement.visible[b, node + 1].nonzero().flatten().tolist()) == columns


def test_a_batch_with_a_chain_and_a_tree():
    chain, tree = Placed(1, 6, Tree.chain((2, 3))), Placed(4, 2, Tree((5, 6, 7), (-1, -1, 1)))
    both = place([chain, tree], TRASH)
    alone = place([chain], TRASH)
    assert torch.equal(both.slots[0, :3], alone.slots[0])
    assert torch.equal(both.visible[0, :3, :8], alone.visible[0])
    assert ancestors(tree.tree).tolist() == both.visible[1, 1:4, 2:5].tolist()


def test_accepted_columns():
    assert accepted_columns(10, (0, 2, 5)) == (10, 12, 15)
    assert accepted_columns(10, ()) == ()


@pytest.mark.parametrize("seed", range(5))
def test_a_model_over_a_random_tree_answers_as_over_its_paths_and_after_the_commit(seed):
    """The scripted model reads its prefix through columns and mask, so a wrong one shows."""
    rng = np.random.default_rng(seed)
    seen = []

    def script(prefix):
        seen.append(prefix)
        return np.zeros(9)

    model = ScriptedModel(script, 9)
    cache = model.new_cache(2, TRASH)
    assert cache.trash == TRASH
    history = {0: [1, 2, 3], 1: [4]}
    for row, tokens in history.items():
        if tokens[:-1]:
            model.forward(cache, chain_placement([tokens[:-1]], [0], TRASH, first_row=row), WantedOutputs(logits=False))
    for _ in range(4):
        trees = {row: random_tree(rng, 6) for row in history}
        seen.clear()
        model.forward(
            cache, place([Placed(history[b][-1], len(history[b]), trees[b]) for b in (0, 1)], TRASH), WantedOutputs()
        )
        assert seen == [(*history[b], *path_tokens(trees[b], node)) for b in (0, 1) for node in range(-1, 6)]
        for row, tree in trees.items():
            kept = path(tree, int(rng.integers(-1, 6)))
            n = len(history[row])
            cache.commit(row, accepted_columns(n, kept), accepted_columns(n, range(len(kept))))
            history[row] += [tree.tokens[node] for node in kept] + [int(rng.integers(9))]
