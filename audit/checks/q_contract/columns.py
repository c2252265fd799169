"""The contract at level `topk`: drafted tokens against the masses of the row that they were drawn from.

A number drew a token if it lies between the mass before the token and the mass with it. Under the target's noise the
token must lead log q plus noise, as recorded. The row itself is not on record, so its masses are the recorder's. Whole
columns are searched first for the tokens whose draw is then judged one by one: the result contains every token that
breaks a rule, every token whose draw cannot be repeated, and may contain tokens within the rules' tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import NO_NODE, cells_beside, lumped_decisions
from audit.evidence.draft_draws import SINGLE_PRECISION
from audit.evidence.tally import CLOSE, ROUNDED, TOLERANCE, same
from engine.core.trees import depths, orders
from engine.core.types import Floats, Protocol, QKind
from engine.record.columns import EntryIndex, entries_before, examined_nodes, numbered
from engine.record.rows.kept_rows import dense_laws
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import gumbel_at

SUMS: Final = 1e-6
"""Tolerance of log q plus noise."""
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """How many examined tokens were drawn from a row, and those among them that need a look, by their numbers."""

    count: int
    strange: Indices


def drawn_tokens(trace: Trace) -> DrawnTokens:
    """The examined tokens of a well-formed trace that has the masses of q."""
    examined = numbered(trace.n_examined)
    drawn = trace.q_kind[examined.step] == QKind.FULL
    node = examined_nodes(trace)
    u, below, own, total = trace.node_uniform[node], trace.q_below, trace.q_own, trace.q_sum
    # NaN compares as wrong
    with np.errstate(invalid="ignore"):
        wrong = ~_close(total, 1.0, _tolerance(u)) | ~(own > 0) | ~_close(trace.examined_q, own, CLOSE)
        if len(trace.draft_best_id):
            wrong |= _misled(trace, examined, node)
        else:
            wrong |= ~_inside(u * total, below, own, CLOSE)
    return DrawnTokens(int(drawn.sum()), np.flatnonzero(drawn & wrong))


def _close(values: Floats, others: Floats | float, tolerance: Floats | float) -> Flags:
    return np.asarray(np.abs(values - others) <= tolerance)


def _tolerance(u: Floats) -> Floats:
    """Tolerance of a row's sum; wider for foreign engines, whose rows have no draw number."""
    return np.where(np.isnan(u), SINGLE_PRECISION / 2, CLOSE)


def _inside(at: Floats, below: Floats, own: Floats, slack: float) -> Flags:
    """True if a number lies in a token's interval, widened by the slack."""
    return np.asarray((below - slack <= at) & (at < below + own + slack))


def _misled(trace: Trace, examined: EntryIndex, node: Indices) -> Flags:
    """True where the token may not lead log q plus the target's noise; everywhere in a record of trees."""
    if not np.array_equal(trace.node_parent, numbered(trace.n_drafted).local - 1):
        return np.ones(len(node), dtype=np.bool_)
    token = trace.node_token[node].astype(np.int64)
    position = trace.position[examined.step].astype(np.int64) + trace.examined_node
    noise = gumbel_at(trace.header.sampling.seed, trace.header.stream, position, token)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = trace.draft_best_score[:, 0] - (np.log(trace.q_own) + noise)
    return np.asarray((trace.draft_best_id[:, 0] != token) | ~(np.abs(excess) <= SUMS / 2))


def kept_tokens(trace: Trace) -> DrawnTokens:
    """The examined tokens that were drawn from a kept row of q."""
    kept = trace.kept_examined.astype(np.int64)
    drawn = np.unique(kept[trace.q_kind[numbered(trace.n_examined).step[kept]] == QKind.FULL])
    strange = np.intersect1d(drawn, _strange_laws(trace, kept)) if len(drawn) else drawn
    return DrawnTokens(len(drawn), strange)


def _strange_laws(trace: Trace, kept: Indices) -> Indices:
    """The tokens among `kept` whose row may break the contract."""
    if trace.header.coupled_draft or not np.array_equal(trace.node_parent, numbered(trace.n_drafted).local - 1):
        return kept
    q, at = dense_laws(trace), _places(trace, kept)
    with np.errstate(invalid="ignore"):
        wrong = _wrong_draws(trace, kept, q)
        placed = np.flatnonzero(at >= 0)
        placed = placed[~np.isnan(trace.tail[at[placed], 1])]
        wrong[placed] |= _wrong_cells(trace, at[placed], q[placed])
    return kept[wrong]


def _places(trace: Trace, kept: Indices) -> Indices:
    """[H] the emitted token at the place of each kept row of a chain, -1 if its own choice did not decide there."""
    step, node = numbered(trace.n_examined).step[kept], trace.examined_node[kept].astype(np.int64)
    begin = entries_before(trace.n_emitted)
    own = (node < trace.n_emitted[step]) & (trace.header.protocol is not Protocol.BLOCK)
    return np.where(own, begin[step] + node, -1)


def _wrong_draws(trace: Trace, kept: Indices, q: Floats) -> Flags:
    """[H] true where q may be no distribution, or may not have given the token; near borders too."""
    node = examined_nodes(trace)[kept]
    token, u = trace.node_token[node].astype(np.int64), trace.node_uniform[node]
    own, total = q[np.arange(len(q)), token], q.sum(axis=1)
    below = np.where(np.arange(q.shape[1]) < token[:, None], q, 0.0).sum(axis=1)
    wrong = ~_close(total, 1.0, _tolerance(u)) | (q < 0).any(axis=1) | ~(own > 0)
    wrong |= ~_close(trace.examined_q[kept], own, CLOSE)
    return np.asarray(wrong | ~np.isnan(u) & ~_inside(u * total, below, own, -TOLERANCE))


def _wrong_cells(trace: Trace, at: Indices, q: Floats) -> Flags:
    """[n] true where the cells of q at the places `at` [n] may not be those of the rows `q` [n, V]."""
    cells = cells_beside(trace.cell_id[at].astype(np.int64), q)
    near = np.abs(trace.cell_q[at] - cells.held) <= (ROUNDED + ROUNDED * np.abs(cells.held)) / 2
    outside = q.sum(axis=1) - cells.held.sum(axis=1)
    wrong = (cells.used & ~(near & cells.inside)).any(axis=1) | cells.twice
    return np.asarray(wrong | ~_close(trace.tail[at, 1], outside, CLOSE))


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
