"""Which tree to draft: Sequoia's dynamic programme (Chen et al. 2402.12374) and the size that pays.

rates[b] is the chance that the b-th tried child of a node (from 0) is the accepted one, assumed independent of the
node. The events are disjoint, so the sum is at most 1; children beyond the vector are never accepted. Where acceptance
depends on the level, rates holds a vector per level, the root's children first, the last one also for all deeper
levels. Sizes count drafted nodes, never the root, which is already committed; depths are levels of drafted nodes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from engine.core import trees
from engine.core.errors import InvalidRequest
from engine.core.trees import ROOT
from engine.core.types import Floats, Tree

ROUNDING = 1e-9
"""By how much the sum of rates may pass 1."""
Rates = Sequence[float] | Sequence[Sequence[float]]
"""An acceptance vector for all levels, or one vector per level."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without its tokens: parents before children, siblings in the order in which they are tried.

    Raises:
        InvalidRequest: a parent that does not come before its child.
    """

    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        trees.require_valid(self._blank())

    def __len__(self) -> int:
        return len(self.parents)

    def _blank(self) -> Tree:
        return Tree((0,) * len(self.parents), self.parents)

    @property
    def depths(self) -> tuple[int, ...]:
        """Of each node, its distance from the root: 1 for the root's children."""
        return trees.depths(self._blank())

    @property
    def depth(self) -> int:
        """Levels of drafted nodes; 0 for the empty shape."""
        return max(self.depths, default=0)

    @property
    def children(self) -> list[list[int]]:
        """The children of the root, and of each node."""
        children: list[list[int]] = [[] for _ in range(1 + len(self))]
        for place, parent in enumerate(self.parents):
            children[parent + 1].append(place)
        return children

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of each node, how many of its siblings are tried before it."""
        seen: dict[int, int] = {}
        result: list[int] = []
        for parent in self.parents:
            result.append(seen.get(parent, 0))
            seen[parent] = result[-1] + 1
        return tuple(result)


@dataclass(frozen=True, slots=True)
class PlannedShape:
    """A shape with the expected tokens per step that it was chosen for."""

    shape: TreeShape
    expected_tokens: float


@dataclass(frozen=True, slots=True)
class PlanningCosts:
    """Measured wall times, in microseconds.

    `draft_forward_us` is one draft forward, which drafts one level of the tree, `draft_node_us` what every drafted node
    costs beside it; `target_forward_us[i]` is one target forward over `tokens[i]` tokens per row.

    Raises:
        InvalidRequest: no times, numbers of tokens that do not ascend from 1 or more, or a time that is not
            positive and finite (a draft may be free).
    """

    draft_forward_us: float
    tokens: tuple[int, ...]
    target_forward_us: tuple[float, ...]
    draft_node_us: float = 0.0

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in zip(self.tokens, self.tokens[1:], strict=False))
        rules = (
            (0 < len(self.tokens) == len(self.target_forward_us), "planning needs a target time per number of tokens"),
            (ascending and min(self.tokens, default=0) >= 1, "measured numbers of tokens must ascend from 1 or more"),
            (all(0 < time < math.inf for time in self.target_forward_us), "target times must be positive and finite"),
            (0 <= self.draft_forward_us < math.inf, "the draft time must be 0 or more, and finite"),
            (0 <= self.draft_node_us < math.inf, "the time of a drafted node must be 0 or more, and finite"),
        )
        for holds, message in rules:
            if not holds:
                raise InvalidRequest(message)

    def target_us(self, tokens: int) -> float:
        """Time of one target forward, linear between the measured numbers of tokens.

        Raises:
            InvalidRequest: a number outside the measured range.
        """
        low, high = self.tokens[0], self.tokens[-1]
        if not low <= tokens <= high:
            raise InvalidRequest(f"target forwards were measured from {low} to {high} tokens, not at {tokens}")
        return float(np.interp(tokens, self.tokens, self.target_forward_us))

    def step_us(self, shape: TreeShape) -> float:
        """Time of one step: a draft forward per level, the nodes' drawing, a target forward over root and nodes."""
        drafting = shape.depth * self.draft_forward_us + len(shape) * self.draft_node_us
        return drafting + self.target_us(len(shape) + 1)


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """The shape with the most tokens per second, and the estimates behind it."""

    planned: PlannedShape
    step_us: float

    @property
    def tokens_per_second(self) -> float:
        """Expected tokens of a step over its time; prompts, sampling and recording are omitted."""
        return self.planned.expected_tokens / self.step_us * 1e6


@dataclass(frozen=True, slots=True)
class _Table:
    """The programme's cells for every depth d left and number n of nodes below a node; n <= N, d <= D, b < B.

    values [D + 1, N + 1]: expected tokens of the best subtree, its top included; -inf where there is none. taken [D +
    1, B, N + 1]: of n nodes for the children from the b-th on, the number that goes to that child, itself included.
    """

    values: Floats
    taken: NDArray[np.int64]


def chain_shape(size: int) -> TreeShape:
    """`size` nodes, one below the other. Raises InvalidRequest: a negative size."""
    return k_ary_shape(1, size)


def k_ary_shape(k: int, size: int) -> TreeShape:
    """The complete k-ary tree of exactly `size` nodes, filled level by level from the left.

    Raises:
        InvalidRequest: k below 1 or a negative size.
    """
    _require(k >= 1, f"a node has at least 1 child, not {k}")
    _require(size >= 0, f"a tree has 0 drafted nodes or more, not {size}")
    return TreeShape(tuple(node // k + ROOT for node in range(size)))


def rates_at(rates: Rates, level: int) -> Sequence[float]:
    """The acceptance vector of the children of a node `level` levels below the root."""
    if len(rates) and isinstance(rates[0], Sequence):
        vectors = cast("Sequence[Sequence[float]]", rates)
        return vectors[min(level, len(vectors) - 1)]
    return cast("Sequence[float]", rates)


def expected_tokens(shape: TreeShape, rates: Rates) -> float:
    """Expected tokens of one step: 1 and, of every node, the product of the rates on its path.

    The 1 is the token that every step emits besides the accepted ones (recovered or bonus); the empty
    shape is plain decoding.

    Raises:
        InvalidRequest: `rates` is not an acceptance vector.
    """
    _require_rates(rates)
    reached, levels = [1.0], [0]
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        own = rates_at(rates, levels[parent + 1])
        reached.append(reached[parent + 1] * own[rank] if rank < len(own) else 0.0)
        levels.append(levels[parent + 1] + 1)
    return math.fsum(reached)


def best_shape(rates: Rates, size: int, depth: int) -> PlannedShape:
    """The tree of exactly `size` drafted nodes in at most `depth` levels with the most expected tokens.

    A node has at most as many children as its level has rates. Sequoia's m and l count the root: m = size + 1,
    l = depth + 1.
    Time O(depth * B * size^2) with B rates per level. Among equals the choice is arbitrary and always the same.

    Raises:
        InvalidRequest: `rates` is not an acceptance vector, a negative number, or a size for which these
            levels have no place.
    """
    _require_rates(rates)
    _require(min(size, depth) >= 0, f"size and depth must be 0 or more, not {size} and {depth}")
    planned = _read(_tabulate(rates, size, depth), size, depth)
    if planned is None:
        children = max(len(rates_at(rates, level)) for level in range(max(1, depth)))
        raise InvalidRequest(f"no tree of depth {depth} with {children} children per node has {size} drafted nodes")
    return planned


def choose_shape(rates: Rates, costs: PlanningCosts, sizes: Iterable[int], depths: Iterable[int]) -> ChosenShape:
    """The best tree of one of the sizes, within one of the depths, with the most expected tokens per second.

    With 0 among the sizes the answer may be not to draft. A depth is a limit: a shape with fewer levels
    pays for these only. Sizes for which a depth has no place are passed over. Among equals the
    smallest, then the one with the lowest limit.

    Raises:
        InvalidRequest: `rates` is not an acceptance vector, a negative number, a size whose target forward
            was not measured, or no candidate at all.
    """
    _require_rates(rates)
    wanted, limits = sorted(set(sizes)), sorted(set(depths))
    _require(bool(wanted and limits), "planning needs at least one size and one depth")
    _require(min(wanted[0], limits[0]) >= 0, f"size and depth must be 0 or more, not {wanted[0]} and {limits[0]}")
    tables = {depth: _tabulate(rates, wanted[-1], depth) for depth in limits}
    result = (_read(tables[depth], size, depth) for size in wanted for depth in limits)
    candidates = [ChosenShape(item, costs.step_us(item.shape)) for item in result if item is not None]
    _require(bool(candidates), f"no tree of {wanted[0]} drafted nodes or more fits into depth {limits[-1]}")
    return max(candidates, key=lambda item: item.tokens_per_second)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidRequest(message)


def _require_rates(rates: Rates) -> None:
    levels = len(rates) if len(rates) and isinstance(rates[0], Sequence) else 1
    for vector in (rates_at(rates, level) for level in range(levels)):
        for rank, rate in enumerate(vector):
            _require(0 <= rate <= 1, f"the rate of child {rank} must be in [0, 1], not {rate}")
        total = math.fsum(vector)
        _require(total <= 1 + ROUNDING, f"the rates of the children sum to {total:.6g}, above 1")


def _tabulate(rates: Rates, size: int, depth: int) -> _Table:
    """All cells up to `size` for trees of at most `depth` levels; a tree of `size` nodes has no more levels."""
    depth = min(size, depth)
    vectors = [rates_at(rates, level) for level in range(depth)]
    values = np.full((depth + 1, size + 1), -np.inf)
    values[:, 0] = 1.0
    taken = np.zeros((depth + 1, max(map(len, vectors), default=0), size + 1), dtype=np.int64)
    for deep in range(1, depth + 1):
        children = np.full(size + 1, -np.inf)
        children[0] = 0.0
        # a top with `deep` levels below it stands depth - deep levels below the root
        vector = vectors[depth - deep]
        for rank in reversed(range(len(vector))):
            children, taken[deep, rank] = _with_child(vector[rank], values[deep - 1], children)
        values[deep] = 1.0 + children
    return _Table(values, taken)


def _with_child(rate: float, below: Floats, later: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The best share of n nodes between one child's subtree and its later siblings, for all n at once.

    below [N + 1] is a subtree's value by the nodes below its top, later [N + 1] the siblings' value by
    their nodes. Returns the value by n, and the nodes of the child's subtree; without nodes no child.
    """
    nodes = np.arange(len(below))
    # where= rather than a product: a rate of 0 times an infeasible -inf is not a number
    gain = np.full(len(below), -np.inf)
    np.multiply(rate, below[:-1], out=gain[1:], where=np.isfinite(below[:-1]))
    rest = nodes[:, None] - nodes
    totals = np.where(rest >= 0, gain + later[rest], -np.inf)
    values = totals.max(axis=1)
    values[0] = 0.0
    return values, totals.argmax(axis=1)


def _read(table: _Table, size: int, depth: int) -> PlannedShape | None:
    """One cell with its tree, or None where it is infeasible."""
    depth = min(depth, len(table.values) - 1)
    value = float(table.values[depth, size])
    return PlannedShape(_unfold(table, size, depth), value) if math.isfinite(value) else None


def _unfold(table: _Table, size: int, depth: int) -> TreeShape:
    """The tree behind a feasible cell, level by level: lists are indexed by node + 1, the root first."""
    parents: list[int] = []
    below, levels = [size], [0]
    for node in range(ROOT, size):
        left, level = below[node + 1], levels[node + 1]
        for taken in table.taken[depth - level]:
            if left == 0:
                break
            parents.append(node)
            below.append(int(taken[left]) - 1)
            levels.append(level + 1)
            left -= int(taken[left])
    return TreeShape(tuple(parents))
