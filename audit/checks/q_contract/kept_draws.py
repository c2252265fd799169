"""Whole rows of q that level `topk` keeps of a sample of tokens, under the contract of level `full`.

A kept row is a distribution whose draw is repeated from all of its entries, and it has the recorded cells. The choice
of the sample is the record's (`engine.record.rows.kept_rows`); `replay` repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.evidence.draft_draws import DraftDraw, contract_fault, drawn_again, draws_from
from engine.core.types import Floats
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace
from engine.sampling.rng import Randomness

ROUNDED = 1e-6
"""Rounding of a float32 cell."""
SUMMED = 1e-9
"""Tolerance of sums over whole rows."""


def kept_draws(trace: Trace, wanted: NDArray[np.int64]) -> Iterator[DraftDraw]:
    """The examined tokens with the numbers `wanted`, ascending, whose rows of q are kept."""
    chosen = frozenset(wanted.tolist())
    ends = np.cumsum(trace.kept_q_count, dtype=np.int64).tolist()
    counts = trace.kept_q_count.tolist()
    parts = {
        x: slice(end - count, end)
        for x, end, count in zip(trace.kept_examined.tolist(), ends, counts, strict=True)
        if x in chosen
    }

    def row(x: int) -> Floats | None:
        if x not in parts:
            return None
        q = np.zeros(trace.header.vocabulary)
        q[trace.kept_q_id[parts[x]]] = trace.kept_q[parts[x]]
        return q

    if parts:
        steps = np.searchsorted(np.cumsum(trace.n_examined, dtype=np.int64), wanted, side="right")
        yield from draws_from(trace, row, np.unique(steps).tolist())


def kept_fault(draw: DraftDraw, trace: Trace, randomness: Randomness) -> str | None:
    """Why the kept row cannot be the law of the token or of the place; None if it may."""
    message = contract_fault(draw)
    if message:
        return message
    again = drawn_again(draw, trace, randomness)
    if again is not None and again != draw.token:
        return f"drafted token {draw.token} at position {draw.position}: its whole q and its number give {again}"
    return _cells_fault(draw, trace)


def _cells_fault(draw: DraftDraw, trace: Trace) -> str | None:
    """The recorded cells hold q of a place only where one token was drawn there."""
    if draw.at is None or np.isnan(trace.tail[draw.at, 1]):
        return None
    used = trace.cell_id[draw.at] != PAD
    ids = trace.cell_id[draw.at][used].astype(np.int64)
    if (ids < len(draw.q)).all():
        outside = float(np.delete(draw.q, ids).sum())
        near = np.allclose(trace.cell_q[draw.at][used], draw.q[ids], rtol=ROUNDED, atol=ROUNDED)
        if near and abs(float(trace.tail[draw.at, 1]) - outside) <= SUMMED:
            return None
    return f"drafted token {draw.token} at position {draw.position}: the cells of q are not those of its whole row"
