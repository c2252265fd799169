"""SpecInfer (Miao et al. 2305.09781): token trees of fixed widths, merged from one or several draft models.

Every drafter expands the root `widths[0]` times, each of these nodes `widths[1]` times, and so on; the trees hang side
by side under the root. Siblings of different drafters are drawn independently, each from its drafter's own q.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.errors import ModelNeeded
from engine.core.options import numbers
from engine.core.trees import ROOT
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth, readers_of
from engine.proposers.interface import ProposerFacts, ProposerParts
from engine.proposers.options import read
from engine.proposers.tree_planning import TreeShape
from engine.sampling.draw import Siblings


class SpecInferProposer(StaticTreeProposer):
    """Expansion by widths, and a merge of the drafters' trees."""

    @classmethod
    def build(cls, parts: ProposerParts) -> SpecInferProposer:
        """From all draft models and the options `widths` and `siblings`."""
        options = read("specinfer", parts.options)
        if not parts.drafts:
            raise ModelNeeded("proposer specinfer needs a draft model")
        widths = [int(width) for width in numbers(options["widths"])]
        growth = TreeGrowth(Siblings(options["siblings"]), lambda size, depth: widths_shape(widths[:depth], size))
        facts = ProposerFacts("specinfer", shape="tree", options=options, reads_target=False)
        return cls(parts, readers_of(parts, parts.drafts), growth, facts)


def widths_shape(widths: Sequence[int], size: int) -> TreeShape:
    """`widths[d]` children under every node at depth d, cut to the first `size` nodes, branch after branch.

    A small size thus drops the last branches and keeps the depth of the first ones.
    """
    parents: list[int] = []
    waiting = _children(ROOT, widths)
    while waiting and len(parents) < size:
        parent, below = waiting.pop()
        parents.append(parent)
        waiting += _children(len(parents) - 1, below)
    return TreeShape(tuple(parents))


def _children(node: int, widths: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    """For each child to be added its parent, and the widths below it."""
    return [(node, widths[1:])] * widths[0] if widths else []
