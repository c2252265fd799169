"""Token trees as parent arrays; a chain is a tree with one child per node.

Node indices count from 0; -1 is the root, the last committed token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import InvalidRequest
from engine.core.types import Tree

ROOT = -1


def require_valid(tree: Tree) -> None:
    """Raise InvalidRequest unless every parent comes before its child."""
    if len(tree.tokens) != len(tree.parents):
        raise InvalidRequest(f"a tree of {len(tree.tokens)} tokens has {len(tree.parents)} parents")
    for node, parent in enumerate(tree.parents):
        if not ROOT <= parent < node:
            raise InvalidRequest(f"tree node {node} has parent {parent}; parents must come before their children")


def is_chain(tree: Tree) -> bool:
    """True if each node is the child of the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(tree.parents))


def children(tree: Tree, node: int) -> tuple[int, ...]:
    """The children of a node (or of the root), in order."""
    return tuple(i for i, parent in enumerate(tree.parents) if parent == node)


def path(tree: Tree, node: int) -> tuple[int, ...]:
    """The nodes from the root's child down to `node`; empty for the root."""
    nodes: list[int] = []
    while node != ROOT:
        nodes.append(node)
        node = tree.parents[node]
    return tuple(reversed(nodes))


def path_tokens(tree: Tree, node: int) -> tuple[int, ...]:
    """The tokens on the way from the root to `node`, `node` included."""
    return tuple(tree.tokens[i] for i in path(tree, node))


def depths(tree: Tree) -> tuple[int, ...]:
    """Distance of each node from the root: 1 for its children."""
    return tuple(levels(tree.parents))


def levels(parents: Sequence[int]) -> list[int]:
    """As `depths`, of the nodes with these parents."""
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return result


def ancestors(tree: Tree) -> NDArray[np.bool_]:
    """[N, N] row i is true at every node on the path to node i, i included."""
    mask = np.eye(len(tree), dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            mask[node] |= mask[parent]
    return mask


def side_by_side(tree: Tree, other: Tree) -> Tree:
    """Both trees under one root; the other's nodes follow the first's."""
    shift = len(tree)
    parents = (parent if parent == ROOT else parent + shift for parent in other.parents)
    return Tree(tree.tokens + other.tokens, (*tree.parents, *parents))


def orders(tree: Tree) -> tuple[int, ...]:
    """For each node, the number of earlier nodes at the same depth: 0 everywhere in a chain."""
    seen: dict[int, int] = {}
    result: list[int] = []
    for depth in depths(tree):
        result.append(seen.get(depth, 0))
        seen[depth] = result[-1] + 1
    return tuple(result)
