"""Token trees whose shape is fixed before anything is drawn, from one or several draft models.

Every drafter grows a tree of its own under the common root, level by level, and reads it in its own cache; the whole
tree is their union. The levels are drawn drafter after drafter, so that a draw's order is the node's place among the
nodes of the same depth. Below a child that repeats the token of an earlier sibling nothing is drawn: no rule ever
accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.core.trees import ROOT
from engine.core.types import Proposal, StepOutcome, Tree
from engine.models.interface import TargetModel, to_numpy
from engine.proposers.draft_model.chain_draft import drawn_proposal
from engine.proposers.draft_model.tree_draft import TreeLevel, TreeReader
from engine.proposers.interface import Context, ProposerFacts, ProposerParts
from engine.proposers.tree_planning import TreeShape
from engine.sampling.draw import Draw, Siblings, SiblingSpec


@dataclass(frozen=True, slots=True)
class TreeGrowth:
    """The parameters of tree growth.

    shape: the tree for a largest number of nodes and levels, as a function of these two numbers only, because drawn
        tokens must not decide which of them are kept.
    """

    siblings: Siblings
    shape: Callable[[int, int], TreeShape]


@dataclass(frozen=True, slots=True, eq=False)
class _DraftedNode:
    """A drafted node, or a drafter's root.

    own: its number in its drafter's tree. whole: its number in the proposal. below: the numbers of its children in the
    shape. drawn: None at the root.
    """

    parent: _DraftedNode | None
    drawn: Draw | None
    own: int
    whole: int
    below: Sequence[int]

    @property
    def path(self) -> tuple[int, ...]:
        """The tokens from the root to this node."""
        return () if self.parent is None or self.drawn is None else (*self.parent.path, self.drawn.token)


@dataclass(slots=True)
class _DrafterTree:
    """One drafter's tree while it grows: its nodes, how many of them it has read, and those of the newest level.

    below: by node of the shape, the root first, the numbers of its children.
    """

    below: list[list[int]]
    frontier: list[_DraftedNode]
    nodes: list[_DraftedNode] = field(default_factory=list)
    read: int = 0

    @classmethod
    def of(cls, shape: TreeShape) -> _DrafterTree:
        """A tree that is to get a shape."""
        below = shape.children
        return cls(below, [_DraftedNode(None, None, ROOT, ROOT, below[0])])

    @property
    def growing(self) -> bool:
        """True if some node of the newest level has children in the shape."""
        return any(node.below for node in self.frontier)


@dataclass(slots=True)
class _Grown:
    """One row's tree while it grows: `nodes` in the proposal's order, the newest level from `level` on."""

    context: Context
    branches: list[_DrafterTree]
    nodes: list[_DraftedNode] = field(default_factory=list)
    level: int = 0
    _tokens: set[tuple[int, int]] = field(default_factory=set)

    @property
    def order(self) -> int:
        """The number of nodes at the depth of the next one."""
        return len(self.nodes) - self.level

    def add(self, branch: _DrafterTree, parent: _DraftedNode, place: int, drawn: Draw) -> _DraftedNode:
        """A new node; a token that an earlier sibling has gets no children."""
        token = (parent.whole, drawn.token)
        below = () if token in self._tokens else branch.below[place + 1]
        self._tokens.add(token)
        node = _DraftedNode(parent, drawn, len(branch.nodes), len(self.nodes), below)
        branch.nodes.append(node)
        self.nodes.append(node)
        return node


def trimmed(shape: TreeShape, size: int, depth: int) -> TreeShape:
    """The first `size` nodes of a shape that stand in its first `depth` levels."""
    kept: dict[int, int] = {ROOT: ROOT}
    levels, parents = {ROOT: 0}, list[int]()
    for node, parent in enumerate(shape.parents):
        if parent in kept and levels[parent] < depth and len(parents) < size:
            kept[node], levels[node] = len(parents), levels[parent] + 1
            parents.append(kept[parent])
    return TreeShape(tuple(parents))


class DraftReader(Protocol):
    """Reads committed tokens and drafted nodes of several rows; `TreeReader` documents each call."""

    def room(self, context: Context) -> int:
        """The number of nodes that can be read behind the row's committed tokens."""

    def start(self, context: Context) -> None:
        """A request enters a row."""

    def roots(self, contexts: Sequence[Context]) -> Mapping[int, Tensor]:
        """[V] logits after each row's newest committed token."""

    def read(self, levels: Mapping[int, TreeLevel]) -> Mapping[int, Tensor]:
        """[n, V] logits after the n new nodes of each row."""

    def observe(self, context: Context, verdict: StepOutcome, read: int) -> None:
        """The verdict on the row's tree, whose first `read` nodes were read."""

    def finish(self, row: int) -> None:
        """Forget the row."""


def readers_of(parts: ProposerParts, drafts: Sequence[TargetModel]) -> list[TreeReader]:
    """One reader for each draft model."""
    return [TreeReader(model, parts.rows, parts.capacity) for model in drafts]


class StaticTreeProposer:
    """Draws trees of fixed shapes; the drafters share the budget evenly, and the first ones take the remainder."""

    def __init__(
        self, parts: ProposerParts, readers: Sequence[DraftReader], growth: TreeGrowth, facts: ProposerFacts
    ) -> None:
        self._readers = readers
        self._rule = parts.rule
        self._draw_siblings = parts.draw_siblings
        self._eos_ids = parts.eos_ids
        self._growth = growth
        self._grown: dict[int, _Grown] = {}
        self.facts = facts

    def start(self, context: Context) -> None:
        """Every drafter reads the prompt but its last token."""
        for reader in self._readers:
            reader.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One tree per row; a drafter whose context a row has outgrown adds nothing to it."""
        grown = [_Grown(context, self._branches(context)) for context in contexts]
        depth = 0
        while any(branch.growing for item in grown for branch in item.branches):
            for one in grown:
                one.level = len(one.nodes)
            for drafter in range(len(self._readers)):
                self._grow_level(drafter, depth, grown)
            depth += 1
        self._grown |= {item.context.row: item for item in grown}
        return [_proposal(item.nodes) for item in grown]

    def _branches(self, context: Context) -> list[_DrafterTree]:
        share, over = divmod(context.budget, len(self._readers))
        sizes = [share + (drafter < over) for drafter in range(len(self._readers))]
        return [
            _DrafterTree.of(self._growth.shape(min(size, reader.room(context)), context.depth))
            for size, reader in zip(sizes, self._readers, strict=True)
        ]

    def _grow_level(self, drafter: int, depth: int, grown: Sequence[_Grown]) -> None:
        """One level of one drafter's trees, for all rows at once."""
        growing = {item.context.row: item for item in grown if item.branches[drafter].growing}
        if not growing:
            return
        rows = self._read(drafter, depth, growing)
        for row, one in growing.items():
            branch, level = one.branches[drafter], []
            for node, logits in zip(branch.frontier, rows[row], strict=True):
                draws = self._children(one, node, logits) if node.below else []
                # fewer children than in the shape if q has fewer tokens
                level += [one.add(branch, node, *pair) for pair in zip(node.below, draws, strict=False)]
            branch.frontier = level

    def _read(self, drafter: int, depth: int, growing: Mapping[int, _Grown]) -> Mapping[int, NDArray[np.floating[Any]]]:
        """[n, V] draft logits after the n nodes of each row's newest level."""
        reader = self._readers[drafter]
        if depth == 0:
            roots = reader.roots([item.context for item in growing.values()])
            return {row: to_numpy(logits[None]) for row, logits in roots.items()}
        levels = {row: _level(item, item.branches[drafter]) for row, item in growing.items()}
        return {row: to_numpy(logits) for row, logits in reader.read(levels).items()}

    def _children(self, grown: _Grown, node: _DraftedNode, logits: NDArray[np.floating[Any]]) -> list[Draw]:
        drafting = grown.context.drawing([*grown.context.history, *node.path], self._eos_ids)
        siblings = SiblingSpec(len(node.below), self._growth.siblings, grown.order)
        return self._draw_siblings(self._rule, siblings, logits, drafting)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Each drafter keeps the accepted nodes of its own tree."""
        grown = self._grown.pop(context.row)
        for reader, branch in zip(self._readers, grown.branches, strict=True):
            own = {node.whole: node.own for node in branch.nodes}
            examined = tuple(replace(item, node=own[item.node]) for item in verdict.examined if item.node in own)
            reader.observe(context, replace(verdict, examined=examined), branch.read)

    def finish(self, row: int) -> None:
        """Forget the row."""
        for reader in self._readers:
            reader.finish(row)


def _level(grown: _Grown, branch: _DrafterTree) -> TreeLevel:
    """The part of its tree that a drafter reads next; marks it as read."""
    tokens = tuple(node.path[-1] for node in branch.nodes)
    parents = tuple(node.parent.own for node in branch.nodes if node.parent is not None)
    first, branch.read = branch.read, len(branch.nodes)
    return TreeLevel(len(grown.context.history), Tree(tokens, parents), first)


def _proposal(nodes: Sequence[_DraftedNode]) -> Proposal:
    draws = [node.drawn for node in nodes if node.drawn is not None]
    parents = tuple(node.parent.whole for node in nodes if node.parent is not None)
    return drawn_proposal(Tree(tuple(draw.token for draw in draws), parents), draws)
