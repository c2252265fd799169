"""Lumped laws: the parts of p and q that level `topk` keeps at the place of an emitted token.

A *cell* is a token of its own, or the tail that holds all others. Cells are the
K most likely tokens of p and the K most likely of q that are not among them, so
they are known before the token is drawn: a lumped law of this kind keeps every
test of p exact. Masses that depend on the whole row (before a token in id order,
of the residual, of the product) are kept as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import depths
from engine.core.types import Floats, QKind, Role, StepRecord
from engine.record.row_laws import RowLaw, largest

TOP: Final = 20
PAD: Final = 2**32 - 1
"""The id of a cell that is not used; its masses are 0."""
ROOT: Final = -1
NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class Cells:
    """E emitted tokens on C cells; columns as in `engine.record.trace.Trace`. Columns of an unknown q are NaN."""

    cell_id: NDArray[np.uint32]
    cell_p: NDArray[np.float32]
    cell_q: NDArray[np.float32]
    tail: Floats
    row_p: Floats
    p_below: Floats
    q_token: Floats
    residual_below: Floats
    residual_sum: Floats
    product: Floats


@dataclass(frozen=True, slots=True)
class _TokenRows:
    """One emitted token: its row, and the law of the draft at its place."""

    p: Floats
    q: Floats | None
    token: int


def width(vocabulary: int) -> int:
    """Cells per token, the tail not counted."""
    return min(2 * TOP, vocabulary)


def empty(count: int, vocabulary: int) -> Cells:
    """Unfilled rows for `count` tokens."""
    cells = width(vocabulary) if vocabulary else 0
    numbers = (np.full(count, NAN) for _ in range(6))
    return Cells(
        np.full((count, cells), PAD, np.uint32),
        np.zeros((count, cells), np.float32),
        np.full((count, cells), NAN, np.float32),
        np.full((count, 2), NAN),
        *numbers,
    )


def cells_of(records: list[StepRecord], laws: Sequence[RowLaw], vocabulary: int, coupled: bool) -> Cells:
    """The cells of every emitted token of `records`.

    Args:
        records: steps with their proposals' q.
        laws: p of each emitted token.
        vocabulary: V.
        coupled: drafts used the target's noise.
    """
    found = empty(len(laws), vocabulary)
    places = (place for record in records for place in _places(record))
    for at, (law, (token, q)) in enumerate(zip(laws, places, strict=True)):
        # a draft that read the target's noise must not choose cells by its token
        blind = coupled and _one_hot(q)
        _fill(found, at, _TokenRows(law.p, None if blind else q, token))
    return found


def _one_hot(q: Floats | None) -> bool:
    return q is not None and bool(q.max() == 1.0)


def _places(record: StepRecord) -> Iterator[tuple[int, Floats | None]]:
    """Each emitted token and the q of its place, down the step's tree."""
    tree = record.proposal.tree
    examined = {each.node for each in record.verdict.examined}
    node, lost = ROOT, False
    for each in record.verdict.emitted:
        offered = [] if lost else [child for child, parent in enumerate(tree.parents) if parent == node]
        yield each.token, _q(record, offered, examined)
        kept = [child for child in offered if tree.tokens[child] == each.token]
        lost = not kept or each.role is not Role.ACCEPTED
        node = kept[0] if kept else ROOT


def _q(record: StepRecord, offered: list[int], examined: set[int]) -> Floats | None:
    """[V] the law of one drawn token that was examined, or the mean of one-hot rows."""
    proposal = record.proposal
    if proposal.q_kind is QKind.FULL and proposal.q is not None:
        return proposal.q[offered[0]] if len(offered) == 1 and offered[0] in examined else None
    if proposal.q_kind is QKind.ONE_HOT and offered:
        row = np.zeros(len(record.logits[0]))
        np.add.at(row, [proposal.tree.tokens[child] for child in offered], 1.0 / len(offered))
        return row
    return None


def _fill(found: Cells, at: int, place: _TokenRows) -> None:
    p, q, token = place.p, place.q, place.token
    ids = largest(p, TOP)
    if q is not None:
        further = largest(q, TOP)
        ids = np.concatenate([ids, further[~np.isin(further, ids)]])
    count = len(ids)
    found.cell_id[at, :count] = ids
    found.cell_p[at, :count] = p[ids]
    found.tail[at, 0] = _rest(p, ids)
    found.row_p[at], found.p_below[at] = p[token], p[:token].sum()
    if q is not None:
        left = np.subtract(p, q)
        np.maximum(left, 0.0, out=left)
        found.cell_q[at] = 0.0
        found.cell_q[at, :count] = q[ids]
        found.tail[at, 1] = _rest(q, ids)
        found.q_token[at], found.product[at] = q[token], p @ q
        found.residual_below[at], found.residual_sum[at] = left[:token].sum(), left.sum()


def _rest(law: Floats, ids: NDArray[np.int64]) -> float:
    """Mass outside `ids`: summed, not subtracted, so that nothing is exactly 0."""
    outside = law.copy()
    outside[ids] = 0.0
    return float(outside.sum())


@dataclass(frozen=True, slots=True)
class DraftMasses:
    """[X] of the row of q that each examined token was drawn from; NaN without one."""

    q_below: Floats
    """Mass before the token in id order."""
    q_own: Floats
    """Mass of the token."""
    q_sum: Floats
    """Mass of the row."""


def draft_masses(records: list[StepRecord]) -> DraftMasses:
    """The masses of every examined token."""
    found = np.full((3, sum(len(record.verdict.examined) for record in records)), NAN)
    for at, drawn in enumerate(drawn_rows(records)):
        if drawn is not None:
            found[:, at] = drawn.q[: drawn.token].sum(), drawn.q[drawn.token], drawn.q.sum()
    return DraftMasses(*found)


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """The row of q that an examined token was drawn from, and the token's position."""

    q: Floats
    token: int
    position: int


def drawn_rows(records: list[StepRecord]) -> Iterator[DrawnRow | None]:
    """One for each examined token, in order; None if it was not drawn from a row."""
    for record in records:
        proposal = record.proposal
        depth = depths(proposal.tree)
        for each in record.verdict.examined:
            if proposal.q_kind is QKind.FULL and proposal.q is not None:
                position = record.position + depth[each.node] - 1
                yield DrawnRow(proposal.q[each.node], proposal.tree.tokens[each.node], position)
            else:
                yield None
