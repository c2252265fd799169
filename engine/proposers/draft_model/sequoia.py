"""Sequoia (Chen et al. 2402.12374): the token tree with the most expected tokens, drawn without replacement.

The shape is planned for all useful nodes and levels, from the probability that the b-th tried child of a node is the
accepted one, at every level or level by level; or an option sets it. A child's q has lost its earlier siblings.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from engine.core.errors import ModelNeeded
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth, readers_of, trimmed
from engine.proposers.interface import ProposerFacts, ProposerParts
from engine.proposers.options import rates_of, read, shape_of
from engine.proposers.tree_planning import Rates, TreeShape, best_shape, rates_at
from engine.sampling.draw import Siblings


class SequoiaProposer(StaticTreeProposer):
    """A planned tree of one draft model."""

    @classmethod
    def build(cls, parts: ProposerParts) -> SequoiaProposer:
        """From the first draft model and the options `rates`, `depth` and `size`, or `shape`.

        Raises:
            InvalidRequest: an unknown option, rates whose sum is above 1, a shape together with options for planning
                one, or no draft model.
        """
        options = read("sequoia", parts.options)
        if options["shape"]:
            options = {"shape": options["shape"]}
        planned = _shapes(options)
        if parts.draft is None:
            raise ModelNeeded("proposer sequoia needs a draft model")
        if parts.gamma or options.get("size"):
            options["shape"] = ",".join(map(str, planned(parts.gamma or sys.maxsize, sys.maxsize).parents))
        growth = TreeGrowth(Siblings.WITHOUT_REPLACEMENT, planned)
        facts = ProposerFacts("sequoia", shape="tree", options=options, reads_target=False)
        return cls(parts, readers_of(parts, [parts.draft]), growth, facts)


def planned_shape(rates: Rates, size: int, depth: int) -> TreeShape:
    """The best tree of `size` nodes, or of as many as `depth` levels have places for."""
    places, width = 0, 1
    for level in range(depth):
        width *= len(rates_at(rates, level))
        places += width
        if places >= size:
            break
    return best_shape(rates, min(size, places), depth).shape


def _shapes(options: Mapping[str, Any]) -> Callable[[int, int], TreeShape]:
    """The tree for at most `size` nodes in at most `depth` levels."""
    if "rates" not in options:
        given = shape_of(options["shape"])
        return lambda size, depth: trimmed(given, size, depth)
    rates = rates_of(options["rates"])
    planned = functools.cache(functools.partial(planned_shape, rates))
    most, deepest = options["size"] or sys.maxsize, options["depth"]
    return lambda size, depth: planned(min(size, most), min(depth, deepest))
