"""Sequoia (Chen et al. 2402.12374): the token tree with the most expected tokens, drawn without replacement.

The shape is planned for as many nodes and levels as can be of use, from the chance
that the b-th tried child of a node is the accepted one. A child's q has lost its
earlier siblings. Knows nothing about how the rates were measured.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from engine.drafting import Siblings
from engine.errors import InvalidRequest, ModelNeeded
from engine.options import Numbers, Option, Setting, numbers, read_options
from engine.planning import ROUNDING, TreeShape, best_shape
from engine.proposers.base import ProposerFacts
from engine.proposers.parts import ProposerParts
from engine.proposers.static_trees import Growth, StaticTreeProposer, readers_of
from engine.types import QKind

OPTIONS: Final[Mapping[str, Setting]] = {
    "rates": Numbers("0.6,0.04,0.04,0.02", Option(0.0, 0.0, 1.0)),
    "depth": Option(6, 1, 64),
    "size": Option(0, 0, 1024),
}


class SequoiaProposer(StaticTreeProposer):
    """A planned tree of one draft model."""

    @classmethod
    def build(cls, parts: ProposerParts) -> SequoiaProposer:
        """From the first draft model and the options `rates`, `depth` and `size`.

        Raises:
            InvalidRequest: an option that is none, rates whose sum is above 1, or no draft model.
        """
        options = read_options("proposer sequoia", parts.options, OPTIONS)
        rates = numbers(options["rates"])
        if math.fsum(rates) > 1 + ROUNDING:
            raise InvalidRequest(f"proposer sequoia: option rates must sum to at most 1, not {math.fsum(rates):.6g}")
        if parts.draft is None:
            raise ModelNeeded("proposer sequoia needs a draft model")
        planned = functools.cache(functools.partial(planned_shape, rates))
        most, deepest = options["size"] or sys.maxsize, options["depth"]
        if options["size"]:
            options["shape"] = ",".join(map(str, planned(most, deepest).parents))
        growth = Growth(Siblings.WITHOUT_REPLACEMENT, lambda size, depth: planned(min(size, most), min(depth, deepest)))
        facts = ProposerFacts(
            "sequoia", shape="tree", q_kind=QKind.FULL, can_couple=True, state="request", options=options
        )
        return cls(parts, readers_of(parts, [parts.draft]), growth, facts)


def planned_shape(rates: Sequence[float], size: int, depth: int) -> TreeShape:
    """The best tree of `size` nodes, or of as many as `depth` levels have places for."""
    places = sum(len(rates) ** level for level in range(1, depth + 1))
    return best_shape(rates, min(size, places), depth).shape
