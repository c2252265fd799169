"""Drafted tokens beside the q that they were drawn from, and what that q and the recorded number give.

Only examined nodes have a q row. Whether a node is examined is decided by the
tokens before it and by numbers that are not its own, so given that it is, its
token still follows q. Knows nothing about verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.tally import TOLERANCE, same
from engine.core.trees import depths, orders
from engine.core.types import Floats, Protocol, QKind, Tree
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Randomness
from engine.sampling.transforms import gumbel_argmax, inverse_cdf

SINGLE_PRECISION: Final = 1e-4
"""How far from 1 a row of many float32 numbers may add up."""


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
    """How many nodes of the step are as deep and come earlier."""
    at: int | None
    """The emitted token whose row is the target's at this place; None where that row was not the place's own choice."""


def draft_draws(trace: Trace) -> Iterator[DraftDraw]:
    """Every examined token that was drawn from a q row; the trace is at level full and in shape."""
    history = [*trace.header.prompt, *trace.tokens]
    for view in steps_of(trace):
        if view.q_kind is QKind.FULL and view.examined.stop > view.examined.start:
            # a damaged record may place a step anywhere
            yield from _of_step(trace, view, history[min(max(view.position - 1, 0), len(history) - 1)])


def _of_step(trace: Trace, view: StepView, root: int) -> Iterator[DraftDraw]:
    tokens, parents = (
        tuple(int(each) for each in column[view.nodes]) for column in (trace.node_token, trace.node_parent)
    )
    tree = Tree(tokens, parents)
    depth, order = depths(tree), orders(tree)
    # which places of a block were emitted depends on the tokens themselves
    joint = trace.header.protocol is Protocol.BLOCK
    for x in range(view.examined.start, view.examined.stop):
        node = int(trace.examined_node[x])
        at = view.emitted.start + depth[node] - 1
        yield DraftDraw(
            step=view.index,
            token=tokens[node],
            q=trace.q_rows[x],
            examined_q=float(trace.examined_q[x]),
            uniform=float(trace.node_uniform[view.nodes][node]),
            position=view.position + depth[node] - 1,
            previous=tokens[parents[node]] if parents[node] >= 0 else root,
            order=order[node],
            at=None if joint or at >= view.emitted.stop else at,
        )


def contract_fault(draw: DraftDraw) -> str | None:
    """What is wrong with q as the law of the token, whatever number drew it."""
    total = float(draw.q.sum())
    # a row whose draw has no number is another engine's, which normalises in its own precision
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
    """The token that q and the draw's number give; None where no number is known."""
    if draw.q.max() == 1.0:
        return int(draw.q.argmax())
    if trace.header.coupled_draft:
        return gumbel_argmax(draw.q, randomness.gumbel(draw.position, len(draw.q)))
    return None if math.isnan(draw.uniform) else inverse_cdf(draw.q, draw.uniform)


def target_row(draw: DraftDraw, trace: Trace) -> Floats | None:
    """[V] p at the token's place, None where it may not be looked at."""
    return None if draw.at is None else deciding_row(trace, draw.at).p


def undrawn(trace: Trace) -> Iterator[int]:
    """Steps whose drafted tokens are recorded as functions of the prefix, and have a number nevertheless."""
    for view in steps_of(trace):
        numbers = trace.node_uniform[view.nodes]
        if view.q_kind is not QKind.FULL and len(numbers) and not np.all(np.isnan(numbers)):
            yield view.index
