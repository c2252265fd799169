"""Vectorised search for kept rows that `audit.checks.replay.kept_rows` then compares one by one.

The result contains every row with a number that its record does not say, and may contain rows within the tolerances.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.cells import cells_beside
from engine.core.types import Floats
from engine.record.columns import entries_before, numbered
from engine.record.trace import Trace
from engine.sampling.transforms import plain_laws

ROUNDED: Final = 1e-6
"""Relative rounding of a float32 cell."""
SUMMED: Final = 1e-9
"""Tolerance of sums over whole rows."""
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


def strange_rows(trace: Trace) -> list[int]:
    """The kept rows of p that may differ from the record, by their place among the kept ones."""
    logits, header = trace.kept_logits, trace.header
    everything = list(range(len(logits)))
    plain = header.sampling.plain_scores and header.sampling.structured is None
    if not len(logits) or not plain or not np.isfinite(logits.max(axis=1)).all():
        return everything
    p, at = plain_laws(logits, header.sampling), trace.kept_at.astype(np.int64)
    # NaN compares as wrong
    with np.errstate(invalid="ignore"):
        wrong = _wrong_cells(trace, at, p) | _wrong_sums(trace, at, p) | _wrong_tops(trace, at, logits)
    return np.flatnonzero(wrong).tolist()


def _wrong_cells(trace: Trace, at: Indices, p: Floats) -> Flags:
    ids = trace.cell_id[at].astype(np.int64)
    cells = cells_beside(ids, p)
    used, held = cells.used, cells.held
    # unused cells come last
    odd = (used[:, 1:] & ~used[:, :-1]).any(axis=1) | (used & ~cells.inside).any(axis=1) | cells.twice
    far = ~(np.abs(trace.cell_p[at] - held) <= (ROUNDED + ROUNDED * np.abs(held)) / 2)
    outside = p.sum(axis=1) - held.sum(axis=1)
    return np.asarray(odd | (used & far).any(axis=1) | ~(np.abs(trace.tail[at, 0] - outside) <= SUMMED / 2))


def _wrong_sums(trace: Trace, at: Indices, p: Floats) -> Flags:
    token = trace.token[at].astype(np.int64)
    below = np.where(np.arange(p.shape[1]) < token[:, None], p, 0.0).sum(axis=1)
    own = p[np.arange(len(p)), token]
    return np.asarray(
        ~(np.abs(trace.row_p[at] - own) <= SUMMED / 2) | ~(np.abs(trace.p_below[at] - below) <= SUMMED / 2)
    )


def _wrong_tops(trace: Trace, at: Indices, logits: NDArray[np.floating]) -> Flags:
    tops, rows = trace.top_id[at].astype(np.int64), np.arange(len(at))[:, None]
    inside = tops < logits.shape[1]
    known = np.where(inside, tops, 0)
    scores = logits.astype(np.float64)
    held = scores[rows, known]
    scores[rows, known] = -np.inf
    larger = scores.max(axis=1) > held.min(axis=1)
    return np.asarray((held != trace.top_score[at]).any(axis=1) | larger | ~inside.all(axis=1))


def strange_laws(trace: Trace) -> list[int]:
    """The kept rows of q whose sums may differ from the record, by their place among the kept ones."""
    kept = trace.kept_examined.astype(np.int64)
    first = entries_before(trace.n_drafted)
    node = first[numbered(trace.n_examined).step[kept]] + trace.examined_node[kept]
    token, ids = np.repeat(trace.node_token[node], trace.kept_q_count), trace.kept_q_id
    sums = {
        "q_below": _by_row(np.where(ids < token, trace.kept_q, 0.0), trace.kept_q_count),
        "q_own": _by_row(np.where(ids == token, trace.kept_q, 0.0), trace.kept_q_count),
        "q_sum": _by_row(trace.kept_q, trace.kept_q_count),
    }
    with np.errstate(invalid="ignore"):
        near = [np.abs(getattr(trace, name)[kept] - value) <= SUMMED / 2 for name, value in sums.items()]
    return np.flatnonzero(~np.logical_and.reduce(near)).tolist()


def _by_row(values: Floats, counts: NDArray[np.integer]) -> Floats:
    """[H] sums of consecutive values, so many for each row."""
    sums, filled = np.zeros(len(counts)), counts > 0
    begins = entries_before(counts)[filled]
    sums[filled] = np.add.reduceat(values, begins) if len(begins) else 0.0
    return sums
