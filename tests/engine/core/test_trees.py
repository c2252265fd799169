"""Parent arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import InvalidRequest
from engine.core.trees import ancestors, children, depths, is_chain, path, path_tokens, require_valid
from engine.core.types import Tree


@st.composite
def trees(draw, largest=9):
    count = draw(st.integers(0, largest))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return Tree(tuple(draw(st.integers(0, 7)) for _ in range(count)), parents)


EXAMPLE = Tree((10, 11, 12, 13, 14), (-1, -1, 0, 1, 2))


def test_an_example_by_hand():
    assert path(EXAMPLE, 4) == (0, 2, 4)
    assert path_tokens(EXAMPLE, 4) == (10, 12, 14)
    assert path(EXAMPLE, -1) == path_tokens(EXAMPLE, -1) == ()
    assert children(EXAMPLE, -1) == (0, 1)
    assert children(EXAMPLE, 4) == ()
    assert depths(EXAMPLE) == (1, 1, 2, 2, 3)
    assert ancestors(EXAMPLE)[4].tolist() == [True, False, True, False, True]
    assert not is_chain(EXAMPLE)
    require_valid(EXAMPLE)


def test_a_chain_is_a_tree_with_one_child_per_node():
    chain = Tree.chain((5, 6, 7))
    assert chain.parents == (-1, 0, 1)
    assert is_chain(chain)
    assert depths(chain) == (1, 2, 3)
    np.testing.assert_array_equal(ancestors(chain), np.tril(np.ones((3, 3), dtype=bool)))
    assert is_chain(Tree())
    assert Tree.chain(()) == Tree()


@pytest.mark.medium
@settings(max_examples=100, deadline=None, derandomize=True)
@given(trees())
def test_the_views_of_a_tree_agree(tree):
    require_valid(tree)
    mask = ancestors(tree)
    for node in range(len(tree)):
        nodes = path(tree, node)
        assert nodes[-1] == node
        assert tree.parents[nodes[0]] == -1
        assert depths(tree)[node] == len(nodes) == mask[node].sum()
        assert np.flatnonzero(mask[node]).tolist() == list(nodes)
        assert node in children(tree, tree.parents[node])
    assert sorted(i for node in range(-1, len(tree)) for i in children(tree, node)) == list(range(len(tree)))


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1), (1, -1)])
def test_a_parent_must_come_before_its_child(parents):
    with pytest.raises(InvalidRequest, match="parents must come before their children"):
        require_valid(Tree(tuple(range(len(parents))), parents))


def test_tokens_and_parents_must_match():
    with pytest.raises(InvalidRequest, match="a tree of 2 tokens has 1 parents"):
        require_valid(Tree((1, 2), (-1,)))
