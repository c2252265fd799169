"""The likeliest tokens of the row that decided a token, with p and q, where the record holds rows or cells."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.draft_places import NO_NODE, places
from audit.report.requests.pieces import Pieces
from audit.text.unsafe import shortened
from engine.core.errors import InvalidRequest
from engine.core.types import QKind, RecordLevel
from engine.record.columns import shape_fault
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace

MOST: Final = 5
"""Alternatives of a token."""
LONGEST: Final = 40
"""Most characters of the text of one."""
MOST_SCORES: Final = 8_000_000
"""Most scores of whole rows that are transformed for one record: 53 rows of a vocabulary of 150,000."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the likeliest tokens at a place; q is None where nothing was drawn from a row of q, or it is unknown."""

    token: int
    text: str | None
    p: float
    q: float | None


class Alternatives:
    """The alternatives of one record. Rows are transformed one by one, on request."""

    def __init__(self, trace: Trace, pieces: Pieces) -> None:
        self._trace = trace
        self._pieces = pieces
        level, fits = trace.header.level, shape_fault(trace) is None
        self._rows = fits and level is RecordLevel.FULL and len(trace.logits) > 0
        self._first = MOST_SCORES // max(1, trace.header.vocabulary)
        self._cells = fits and level is RecordLevel.TOPK and len(trace.cell_id) > 0

    @property
    def known(self) -> bool:
        """True if the record holds rows or cells."""
        return self._rows or self._cells

    @property
    def cut(self) -> int | None:
        """The number of tokens, the first ones, that have alternatives; None if all have."""
        return self._first if self._rows and self._first < len(self._trace.token) else None

    def at(self, index: int) -> tuple[Alternative, ...]:
        """Those of an emitted token, the likeliest first; empty without rows and cells."""
        if self._rows and index >= self._first:
            return ()
        try:
            chosen = self._of_row(index) if self._rows else self._of_cells(index) if self._cells else ()
        except InvalidRequest:
            return ()
        return tuple(chosen)

    def _of_row(self, index: int) -> Iterator[Alternative]:
        p = deciding_row(self._trace, index).p
        node = int(self._places.examined[index])
        drawn = self._places.kind[index] == QKind.FULL and node != NO_NODE and len(self._trace.q_rows) > 0
        q = self._trace.q_rows[node] if drawn else None
        for token in _largest(p):
            yield self._alternative(token, p[token], None if q is None else q[token])

    def _of_cells(self, index: int) -> Iterator[Alternative]:
        trace = self._trace
        p = np.where(trace.cell_id[index] == PAD, 0.0, trace.cell_p[index])
        for cell in _largest(p):
            yield self._alternative(int(trace.cell_id[index][cell]), p[cell], trace.cell_q[index][cell])

    def _alternative(self, token: int, p: Any, q: Any) -> Alternative:
        text = None if self._pieces.text is None else shortened(self._pieces.text(token), LONGEST)
        return Alternative(token, text, float(p), None if q is None or math.isnan(q) else float(q))

    @cached_property
    def _places(self) -> Any:
        return places(self._trace)


def _largest(p: Any) -> Iterator[int]:
    """The places of the largest masses above 0, descending."""
    some = np.argpartition(-p, min(MOST, len(p) - 1))[:MOST]
    for place in some[np.argsort(-p[some], kind="stable")]:
        if p[place] > 0:
            yield int(place)
