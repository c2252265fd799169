"""One view of whole rows and of lumped ones, for the law tests.

For whole rows this module sums the exact numbers; for lumped rows the record holds them, and only tests of single cells
lose power by the lumping. Every law computed here is fixed before its token is drawn.
"""

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import NO_NODE, TAIL, Decisions, LumpedDecisions, own_cell
from audit.stats.anytime.scores import log_p_scores
from engine.core.types import Floats
from engine.record.columns import TOP


def exact_of(made: Decisions) -> LumpedDecisions:
    """The exact numbers, recorded or summed."""
    if made.lumped is not None:
        return made.lumped
    rows, token = np.arange(len(made.token)), made.token
    left = np.maximum(made.p - made.q, 0.0)
    before = np.arange(made.p.shape[1]) < token[:, None]
    one = made.drafted != NO_NODE
    return LumpedDecisions(
        ids=np.broadcast_to(np.arange(made.p.shape[1]), made.p.shape),
        token=token,
        refused=made.drafted,
        p=made.p[rows, token],
        q=made.q[rows, token],
        p_below=np.where(before, made.p, 0.0).sum(axis=1),
        residual_below=np.where(before, left, 0.0).sum(axis=1),
        residual_sum=left.sum(axis=1),
        product=np.sum(made.p * made.q, axis=1),
        drafted_p=np.where(one, made.p[rows, made.drafted], np.nan),
        drafted_q=np.where(one, made.q[rows, made.drafted], np.nan),
    )


def top_of(made: Decisions) -> NDArray[np.int64]:
    """[E] the most likely token; with cells the first cell, never the tail."""
    return made.p.argmax(axis=1) if made.lumped is None else np.zeros(len(made.p), dtype=np.int64)


def log_scores(made: Decisions) -> Floats:
    """[E, C] log p of each token; the tail's score is at most that of its likeliest possible token."""
    if made.lumped is None:
        return log_p_scores(made.p)
    p = made.p.copy()
    p[:, -1] = np.minimum(p[:, -1], p[:, min(TOP, p.shape[1] - 1) - 1])
    return log_p_scores(p)


def residual_laws(made: Decisions, rows: NDArray[np.int64]) -> Floats:
    """[len(rows), C] norm(max(p - q, 0)); p if that has no mass."""
    p = made.p[rows]
    left = np.maximum(p - made.q[rows], 0.0)
    if made.lumped is not None:
        # lumping comes after the difference: the tail of p and that of q may overlap
        left[:, -1] = np.maximum(made.lumped.residual_sum[rows] - left[:, :-1].sum(axis=1), 0.0)
        left[:, -1] = np.where(p[:, -1] > 0, left[:, -1], 0.0)
    mass = left.sum(axis=1, keepdims=True)
    return np.asarray(np.where(mass > 0, left / np.where(mass > 0, mass, 1.0), p))


def previous_at(made: Decisions) -> Floats:
    """[E] the probability of each token's cell at the position before; the tail has what the other cells left."""
    if made.lumped is None:
        before = made.p[np.arange(len(made.token) - 1), made.token[1:]]
    else:
        before = _carried(made.lumped.ids, made.p, made.token)
    return np.concatenate([np.full_like(made.p[:1, 0], np.nan), before])


def _carried(ids: NDArray[np.int64], p: Floats, token: NDArray[np.int64]) -> Floats:
    """[E - 1] of cells `ids` [E, C]: for all but the first row, the row before at the cell `token` [E]."""
    before = np.arange(len(token) - 1)
    cell = own_cell(ids[:-1], ids[before + 1, token[1:]])
    result = np.where(cell == NO_NODE, 0.0, p[before, cell])
    tail = np.flatnonzero(token[1:] == ids.shape[1] - 1)
    # the tail's own mark is no token, so its cell has 0 here
    others = _on_cells(ids[tail], p[tail], ids[tail + 1])
    result[tail] = np.maximum(1.0 - others.sum(axis=1), 0.0)
    return result


def _on_cells(ids: NDArray[np.int64], p: Floats, wanted: NDArray[np.int64]) -> Floats:
    """[n, W] of rows with cells `ids` [n, C]: p of the tokens `wanted` [n, W]; 0 for a token without a cell."""
    result = np.zeros(wanted.shape)
    # from the last cell, because of equal tokens the first counts
    for cell in reversed(range(ids.shape[1])):
        np.copyto(result, p[:, cell, None], where=wanted == ids[:, cell, None])
    return np.where(wanted > TAIL, result, 0.0)
