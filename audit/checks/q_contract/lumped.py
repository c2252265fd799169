"""The contract at level `topk`: drafted tokens against the masses of the row that they were drawn from.

A number drew a token if it lies between the mass before the token and the mass with it. Under the target's noise the
token must lead log q plus noise, as recorded. The row itself is not on record, so its masses are the recorder's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.q_contract.columns import SUMS
from audit.evidence.decisions import NO_NODE, lumped_decisions
from audit.evidence.draft_draws import SINGLE_PRECISION
from audit.evidence.tally import TOLERANCE, same
from engine.core.trees import depths, orders
from engine.core.types import Floats, Protocol
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import gumbel_at


@dataclass(frozen=True, slots=True)
class LumpedDraw:
    """One examined token that was drawn from a row of q."""

    step: int
    token: int
    position: int
    examined_q: float
    uniform: float
    below: float
    own: float
    total: float
    leader: int | None
    """The token that leads log q plus noise; None if the draft did not use the target's noise."""
    excess: float
    """The leader's recorded sum less that of the key; NaN without one."""
    at: int | None
    """The emitted token whose cells hold p and q of this place; None if there is none."""


def lumped_draws(trace: Trace, wanted: NDArray[np.int64]) -> Iterator[LumpedDraw]:
    """The examined tokens with the numbers `wanted`, ascending, which were drawn from a row; the trace is well-formed
    and at level topk.
    """
    steps = np.searchsorted(np.cumsum(trace.n_examined, dtype=np.int64), wanted, side="right")
    chosen = frozenset(wanted.tolist())
    for view in steps_of(trace, np.unique(steps).tolist()):
        yield from _of_step(trace, view, [x for x in range(view.examined.start, view.examined.stop) if x in chosen])


def _of_step(trace: Trace, view: StepView, wanted: Sequence[int]) -> Iterator[LumpedDraw]:
    tree = view.tree
    depth, order = depths(tree), orders(tree)
    for x in wanted:
        node = int(trace.examined_node[x])
        at, position = view.emitted.start + depth[node] - 1, view.position + depth[node] - 1
        led = len(trace.draft_best_id) > 0
        alone = trace.header.protocol is not Protocol.BLOCK and order[node] == 0 and at < view.emitted.stop
        yield LumpedDraw(
            step=view.index,
            token=tree.tokens[node],
            position=position,
            examined_q=float(trace.examined_q[x]),
            uniform=float(trace.node_uniform[view.nodes][node]),
            below=float(trace.q_below[x]),
            own=float(trace.q_own[x]),
            total=float(trace.q_sum[x]),
            leader=int(trace.draft_best_id[x, 0]) if led else None,
            excess=_excess(trace, x, position, tree.tokens[node]) if led else math.nan,
            at=at if alone else None,
        )


def _excess(trace: Trace, x: int, position: int, token: int) -> float:
    noise = gumbel_at(trace.header.sampling.seed, trace.header.stream, np.array([position]), np.array([token]))
    own = float(trace.q_own[x])
    return float(trace.draft_best_score[x, 0]) - (math.log(own) + float(noise[0]) if own > 0 else -math.inf)


def lumped_fault(draw: LumpedDraw) -> str | None:
    """Why q cannot be the law of the token, or its number did not draw it; None if it may have."""
    tolerance = SINGLE_PRECISION if math.isnan(draw.uniform) else TOLERANCE
    if not abs(draw.total - 1.0) <= tolerance:
        return f"q of drafted token {draw.token} is no distribution, it sums to {draw.total:.10g}"
    if not draw.own > 0:
        return f"drafted token {draw.token} has q 0, it was not drawn from q"
    if not same(draw.examined_q, draw.own):
        return f"q of drafted token {draw.token} was tested as {draw.examined_q:.10g}, its row says {draw.own:.10g}"
    return _draw_fault(draw)


def _draw_fault(draw: LumpedDraw) -> str | None:
    where = f"drafted token {draw.token} at position {draw.position}"
    if draw.leader is not None:
        if draw.leader != draw.token:
            return f"{where}: its q and the target's noise give {draw.leader}"
        return None if abs(draw.excess) <= SUMS else f"{where}: log q plus noise is not that of the key"
    at, end = draw.uniform * draw.total, draw.below + draw.own
    if not math.isnan(at) and not draw.below - TOLERANCE <= at < end + TOLERANCE:
        return f"{where}: its q gives it [{draw.below:.10g}, {end:.10g}), its number chooses {at:.10g}"
    return None


def redrawn(draw: LumpedDraw) -> bool:
    """True if the draw was recomputed: by its number, by the noise, or because q leaves one token."""
    return draw.leader is not None or not math.isnan(draw.uniform) or draw.own == 1.0


@dataclass(frozen=True, slots=True)
class CellLaws:
    """p and q [C] of a place on its cells, and the drafted token's cell."""

    p: Floats
    q: Floats
    cell: int


def cell_laws(trace: Trace, draws: list[LumpedDraw]) -> list[CellLaws | None]:
    """The laws at each draw's place; None where the record has none."""
    made = lumped_decisions(trace)
    known = made.known

    def of(draw: LumpedDraw) -> CellLaws | None:
        at = draw.at
        if at is None or not known[at] or made.drafted[at] == NO_NODE:
            return None
        return CellLaws(made.p[at], made.q[at], int(made.drafted[at]))

    return [of(draw) for draw in draws]
