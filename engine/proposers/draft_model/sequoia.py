"""Sequoia (Chen et al. 2402.12374): the token tree with the most expected tokens, drawn without replacement.

The shape is planned for as many nodes and levels as can be of use, from the chance
that the b-th tried child of a node is the accepted one, at every level or level by
level; or it is given. A child's q has lost its earlier siblings. Knows nothing about
how the rates were measured (`python -m engine.tools.plan_tree` does).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.core.errors import InvalidRequest, ModelNeeded
from engine.core.options import NumberListOption, OptionType, ScalarOption, numbers, read_options
from engine.core.types import QKind
from engine.proposers.build import ProposerParts
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth, readers_of, trimmed
from engine.proposers.draft_model.tree_planning import ROUNDING, Rates, TreeShape, best_shape, rates_at
from engine.proposers.interface import ProposerFacts
from engine.sampling.draw import Siblings

RATE: Final = ScalarOption(0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class LevelRatesOption:
    """A setting that takes acceptance vectors, level by level: "0.6,0.2/0.7,0.1"; the last holds for deeper levels."""

    default: str

    @property
    def wants(self) -> str:
        """The form, by the default, and what each number must be."""
        return f'numbers such as "{self.default}", each {RATE.wants}, with / between levels'

    def takes(self, value: object) -> bool:
        """Whether `value` is such a text."""
        each = NumberListOption(self.default, RATE)
        return isinstance(value, str) and all(each.takes(level) for level in value.split("/"))


@dataclass(frozen=True, slots=True)
class ParentsOption:
    """A setting that takes a tree as the parent of each node, -1 for the root: "-1,0,0"; "" is none."""

    default: str = ""

    @property
    def wants(self) -> str:
        """The form."""
        return 'the parent of each node, -1 for the root, parents first, such as "-1,-1,0"'

    def takes(self, value: object) -> bool:
        """Whether `value` is such a text."""
        try:
            return isinstance(value, str) and bool(shape_of(value).parents or not value)
        except (ValueError, InvalidRequest):
            return False


OPTIONS: Final[Mapping[str, OptionType]] = {
    "rates": LevelRatesOption("0.48,0.06,0.03,0.02/0.66,0.07,0.02,0.03/0.71,0.06,0.03,0.02"),
    "depth": ScalarOption(6, 1, 64),
    "size": ScalarOption(0, 0, 1024),
    "shape": ParentsOption(),
}


class SequoiaProposer(StaticTreeProposer):
    """A planned tree of one draft model."""

    @classmethod
    def build(cls, parts: ProposerParts) -> SequoiaProposer:
        """From the first draft model and the options `rates`, `depth` and `size`, or `shape`.

        Raises:
            InvalidRequest: an option that is none, rates whose sum is above 1, a shape beside what a shape is planned
                from, or no draft model.
        """
        options = read_options("proposer sequoia", parts.options, OPTIONS)
        if options["shape"]:
            _require_alone(parts.options)
            options = {"shape": options["shape"]}
        planned = _shapes(options)
        if parts.draft is None:
            raise ModelNeeded("proposer sequoia needs a draft model")
        if parts.gamma or options.get("size"):
            options["shape"] = ",".join(map(str, planned(parts.gamma or sys.maxsize, sys.maxsize).parents))
        growth = TreeGrowth(Siblings.WITHOUT_REPLACEMENT, planned)
        facts = ProposerFacts(
            "sequoia", shape="tree", q_kind=QKind.FULL, can_couple=True, state="request", options=options
        )
        return cls(parts, readers_of(parts, [parts.draft]), growth, facts)


def rates_of(text: str) -> tuple[tuple[float, ...], ...]:
    """The acceptance vectors of a text such as "0.6,0.2/0.7,0.1", one per level.

    Raises:
        ValueError: a part that is no number.
    """
    return tuple(numbers(level) for level in text.split("/"))


def shape_of(text: str) -> TreeShape:
    """The tree of a text such as "-1,-1,0"; of none, the empty tree.

    Raises:
        ValueError: a part that is no whole number.
        InvalidRequest: a parent that does not come before its child.
    """
    return TreeShape(tuple(int(parent) for parent in text.split(",")) if text else ())


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
    """The tree for at most so many nodes in at most so many levels."""
    if "rates" not in options:
        given = shape_of(options["shape"])
        return lambda size, depth: trimmed(given, size, depth)
    rates = rates_of(options["rates"])
    for level in rates:
        if math.fsum(level) > 1 + ROUNDING:
            raise InvalidRequest(f"proposer sequoia: option rates must sum to at most 1, not {math.fsum(level):.6g}")
    planned = functools.cache(functools.partial(planned_shape, rates))
    most, deepest = options["size"] or sys.maxsize, options["depth"]
    return lambda size, depth: planned(min(size, most), min(depth, deepest))


def _require_alone(given: Mapping[str, Any]) -> None:
    others = [name for name in ("rates", "depth", "size") if name in given]
    if others:
        raise InvalidRequest(f"proposer sequoia: option shape is the whole tree; leave out {', '.join(others)}")
