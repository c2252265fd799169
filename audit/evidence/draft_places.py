"""The tokens drafted at each emitted token's place, as arrays.

The source is the step's tree, never the list of examined nodes alone: the drafted tokens are fixed before the target
draws its token, the examined ones are not. Chains are read without a loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.types import QKind, Role
from engine.record.trace import StepView, Trace, steps_of

NO_NODE = -1
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DraftPlaces:
    """One trace's E emitted tokens."""

    step: Indices
    depth: Indices
    """Position in the block: 0 for the first token of a step."""
    kind: Indices
    """`QKind` of the step."""
    offered: tuple[tuple[int, ...], ...] | None
    """The tokens drafted at each place; None for a chain, where `drafted` is enough."""
    drafted: Indices
    """The drafted token if there is exactly one, else `NO_NODE`."""
    candidates: Indices
    """Number of drafted tokens."""
    examined: Indices
    """Index of the first drafted node in the examined ones, `NO_NODE` if absent."""


def places(trace: Trace) -> DraftPlaces:
    """The places of a well-formed trace."""
    first = np.concatenate([[0], np.cumsum(trace.n_drafted, dtype=np.int64)])
    local = np.arange(len(trace.node_token)) - np.repeat(first[:-1], trace.n_drafted)
    return _chain(trace, first) if np.array_equal(trace.node_parent, local - 1) else _tree(trace)


def _chain(trace: Trace, first: Indices) -> DraftPlaces:
    step = np.repeat(np.arange(trace.steps), trace.n_emitted)
    begin = np.concatenate([[0], np.cumsum(trace.n_emitted, dtype=np.int64)])[:-1]
    depth = np.arange(len(step)) - begin[step]
    inside = depth < trace.n_drafted[step]
    node = np.where(inside, first[step] + depth, 0)
    token = trace.node_token[node].astype(np.int64) if len(trace.node_token) else np.zeros(len(step), np.int64)
    kept = inside & (token == trace.token) & (trace.role == Role.ACCEPTED)
    left = np.cumsum(~kept) - ~kept
    # each place offers the next token of the path, until an emitted token leaves the path
    offered = inside & (left == left[begin[step]])
    row = np.full(len(trace.node_token) + 1, NO_NODE, dtype=np.int64)
    owner = np.repeat(np.arange(trace.steps), trace.n_examined)
    row[(first[owner] + trace.examined_node)[::-1]] = np.arange(len(owner))[::-1]
    return DraftPlaces(
        step=step,
        depth=depth,
        kind=trace.q_kind[step].astype(np.int64),
        offered=None,
        drafted=np.where(offered, token, NO_NODE),
        candidates=offered.astype(np.int64),
        examined=np.where(offered, row[node], NO_NODE),
    )


def _tree(trace: Trace) -> DraftPlaces:
    steps = [item for view in steps_of(trace) for item in _walk(trace, view)]

    def column(values: Iterator[int]) -> Indices:
        return np.fromiter(values, dtype=np.int64, count=len(steps))

    return DraftPlaces(
        step=column(item.step for item in steps),
        depth=column(item.depth for item in steps),
        kind=column(int(item.kind) for item in steps),
        offered=tuple(item.tokens for item in steps),
        drafted=column(item.tokens[0] if len(item.tokens) == 1 else NO_NODE for item in steps),
        candidates=column(len(item.tokens) for item in steps),
        examined=column(item.examined for item in steps),
    )


@dataclass(frozen=True, slots=True)
class _TokenPlace:
    step: int
    depth: int
    kind: QKind
    tokens: tuple[int, ...]
    examined: int


def _walk(trace: Trace, view: StepView) -> Iterator[_TokenPlace]:
    """Follow the emitted tokens down the step's tree."""
    tokens = [int(token) for token in trace.node_token[view.nodes]]
    parents = [int(parent) for parent in trace.node_parent[view.nodes]]
    examined = [int(node) for node in trace.examined_node[view.examined]]
    node = NO_NODE
    lost = False
    for depth, at in enumerate(range(view.emitted.start, view.emitted.stop)):
        offered = [] if lost else [child for child, parent in enumerate(parents) if parent == node]
        row = view.examined.start + examined.index(offered[0]) if offered and offered[0] in examined else NO_NODE
        yield _TokenPlace(view.index, depth, view.q_kind, tuple(tokens[child] for child in offered), row)
        kept = [child for child in offered if tokens[child] == int(trace.token[at])]
        lost = not kept or int(trace.role[at]) != Role.ACCEPTED
        node = kept[0] if kept else NO_NODE
