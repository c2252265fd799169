"""Drafted tokens with the q they were drawn from, and the redraw from q and the recorded number.

Only examined nodes have a q row. Earlier tokens and other nodes' numbers decide
whether a node is examined, so an examined token still follows q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.tally import TOLERANCE, same
from engine.core.trees import depths, orders
from engine.core.types import Floats, Protocol, QKind
from engine.record.columns import numbered
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Randomness
from engine.sampling.transforms import gumbel_argmax, inverse_cdf

SINGLE_PRECISION: Final = 1e-4
"""Tolerance of a sum of many float32 numbers that should be 1."""


@dataclass(frozen=True, slots=True)
class DraftDraw:
    """One examined token of a step whose drafts were drawn."""

    step: int
    token: int
    q: Floats
    """[V] given the earlier siblings."""
    examined_q: float
    """The q that the acceptance test used."""
    uniform: float
    position: int
    previous: int
    """The token before the place, on the node's path."""
    order: int
    """Number of earlier nodes of the step at the same depth."""
    at: int | None
    """The emitted token whose row is the target's at this place; None if that row was not this place's own choice."""


RowOf = Callable[[int], "Floats | None"]
"""The row of q of an examined token, by its number in the trace; None if it is not on record."""


def draft_draws(trace: Trace) -> Iterator[DraftDraw]:
    """Every examined token that was drawn from a q row; the trace is well-formed and at level full."""
    return draws_from(trace, lambda x: np.asarray(trace.q_rows[x]))


def draws_from(trace: Trace, row_of: RowOf, steps: Iterable[int] | None = None) -> Iterator[DraftDraw]:
    """The examined tokens that were drawn from rows which `row_of` has, in all steps or in the given ones; the trace is
    well-formed.
    """
    history = [*trace.header.prompt, *trace.tokens]
    for view in steps_of(trace, steps):
        if view.q_kind is QKind.FULL and view.examined.stop > view.examined.start:
            # a damaged record may place a step anywhere
            yield from _of_step(trace, view, row_of, history[min(max(view.position - 1, 0), len(history) - 1)])


def _of_step(trace: Trace, view: StepView, row_of: RowOf, root: int) -> Iterator[DraftDraw]:
    tree = view.tree
    tokens, parents = tree.tokens, tree.parents
    depth, order = depths(tree), orders(tree)
    # under the block rule the tokens themselves decide which places were emitted
    joint = trace.header.protocol is Protocol.BLOCK
    for x in range(view.examined.start, view.examined.stop):
        q, node = row_of(x), int(trace.examined_node[x])
        if q is None:
            continue
        at = view.emitted.start + depth[node] - 1
        yield DraftDraw(
            step=view.index,
            token=tokens[node],
            q=q,
            examined_q=float(trace.examined_q[x]),
            uniform=float(trace.node_uniform[view.nodes][node]),
            position=view.position + depth[node] - 1,
            previous=tokens[parents[node]] if parents[node] >= 0 else root,
            order=order[node],
            at=None if joint or at >= view.emitted.stop else at,
        )


def contract_fault(draw: DraftDraw) -> str | None:
    """Why q cannot be the law of the token, whatever number drew it; None if it can."""
    total = float(draw.q.sum())
    # a row without a draw number comes from another engine, which normalises in its own precision
    tolerance = SINGLE_PRECISION if math.isnan(draw.uniform) else TOLERANCE
    if not abs(total - 1.0) <= tolerance or np.any(draw.q < 0):
        return f"q of drafted token {draw.token} is no distribution, it sums to {total:.10g}"
    own = float(draw.q[draw.token])
    if own == 0:
        return f"drafted token {draw.token} has q 0, it was not drawn from q"
    if not same(draw.examined_q, own):
        return f"q of drafted token {draw.token} was tested as {draw.examined_q:.10g}, its row says {own:.10g}"
    return None


def drawn_again(draw: DraftDraw, trace: Trace, randomness: Randomness) -> int | None:
    """The token given by q and the draw's number; None if the number is unknown."""
    if draw.q.max() == 1.0:
        return int(draw.q.argmax())
    if trace.header.coupled_draft:
        return gumbel_argmax(draw.q, randomness.gumbel(draw.position, len(draw.q)))
    return None if math.isnan(draw.uniform) else inverse_cdf(draw.q, draw.uniform)


def target_row(draw: DraftDraw, trace: Trace) -> Floats | None:
    """[V] p at the token's place; None if conditioning on it would bias the test."""
    return None if draw.at is None else deciding_row(trace, draw.at).p


def undrawn(trace: Trace) -> Iterator[int]:
    """Steps whose drafted tokens are recorded as deterministic but have a random number."""
    numbered_nodes = np.bincount(numbered(trace.n_drafted).step[~np.isnan(trace.node_uniform)], minlength=trace.steps)
    yield from np.flatnonzero((trace.q_kind != QKind.FULL) & (numbered_nodes > 0)).tolist()
