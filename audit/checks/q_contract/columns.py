"""Vectorised search for drafted tokens whose draw `audit.checks.q_contract` then judges one by one, at level `topk`.

The result contains every token that breaks a rule, every token whose draw cannot be repeated, and may contain tokens
within the rules' tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import cells_beside
from audit.evidence.draft_draws import SINGLE_PRECISION
from audit.evidence.tally import TOLERANCE
from engine.core.types import Floats, Protocol, QKind
from engine.record.columns import EntryIndex, entries_before, examined_nodes, numbered
from engine.record.rows.kept_rows import dense_laws
from engine.record.trace import Trace
from engine.sampling.rng import gumbel_at

CLOSE: Final = TOLERANCE / 2
"""Far above rounding, and within the rules' tolerance."""
SUMS: Final = 1e-6
"""Tolerance of log q plus noise."""
ROUNDED: Final = 1e-6
"""Rounding of a float32 cell."""
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
    ids = trace.cell_id[at].astype(np.int64)
    cells = cells_beside(ids, q)
    near = np.abs(trace.cell_q[at] - cells.held) <= (ROUNDED + ROUNDED * np.abs(cells.held)) / 2
    outside = q.sum(axis=1) - cells.held.sum(axis=1)
    wrong = (cells.used & ~(near & cells.inside)).any(axis=1) | cells.twice
    return np.asarray(wrong | ~_close(trace.tail[at, 1], outside, CLOSE))
