"""Lumped laws: the parts of p and q that level `topk` keeps at the place of an emitted token.

A *cell* is a token of its own, or the tail that holds all others. Cells are the K most likely tokens of p and the K
most likely of q that are not among them, so they are known before the token is drawn: a lumped law of this kind keeps
every test of p exact. Masses that depend on the whole row (before a token in id order, of the residual, of the product)
are kept as numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import depths
from engine.core.types import Floats, QKind, Role, StepRecord
from engine.record.columns import TOP
from engine.record.rows.row_laws import RowLaw, RowSums, largest

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


@dataclass(slots=True)
class DraftRows:
    """A step with the sums of its rows of q, which are made once."""

    record: StepRecord
    _known: dict[int, RowSums] = field(default_factory=dict)

    @property
    def drawn(self) -> bool:
        """True if the step's tokens were drawn from rows of q on record."""
        return self.record.proposal.q_kind is QKind.FULL and self.record.proposal.q is not None

    def of(self, node: int) -> RowSums:
        """The row that a node was drawn from."""
        q = self.record.proposal.q
        assert q is not None
        if node not in self._known:
            self._known[node] = RowSums.of(np.asarray(q[node]))
        return self._known[node]


@dataclass(frozen=True, slots=True)
class _Place:
    """One emitted token, and the law of the draft at its place."""

    token: int
    q: RowSums | None


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


def cells_of(drafts: Sequence[DraftRows], laws: Sequence[RowLaw], tops: NDArray[np.int64], coupled: bool) -> Cells:
    """The cells of every emitted token of some steps, [E].

    Args:
        drafts: the steps.
        laws: p of each emitted token.
        tops: [E, K] the ids of the largest scores of each row, descending.
        coupled: drafts used the target's noise.
    """
    answer = empty(len(laws), len(laws[0].weights) if laws else 0)
    places = (place for rows in drafts for place in _places(rows))
    for at, (law, place) in enumerate(zip(laws, places, strict=True)):
        # a draft that read the target's noise must not choose cells by its token
        blind = coupled and place.q is not None and bool(place.q.row.max() == 1.0)
        _fill(answer, at, law, tops[at], _Place(place.token, None) if blind else place)
    return answer


def _places(rows: DraftRows) -> Iterator[_Place]:
    """Each emitted token and the q of its place, down the step's tree."""
    record = rows.record
    tree = record.proposal.tree
    examined = {item.node for item in record.verdict.examined}
    node, lost = ROOT, False
    for one in record.verdict.emitted:
        offered = [] if lost else [child for child, parent in enumerate(tree.parents) if parent == node]
        yield _Place(one.token, _q(rows, offered, examined))
        kept = [child for child in offered if tree.tokens[child] == one.token]
        lost = not kept or one.role is not Role.ACCEPTED
        node = kept[0] if kept else ROOT


def _q(rows: DraftRows, offered: list[int], examined: set[int]) -> RowSums | None:
    """The law of one drawn token that was examined, or the mean of one-hot rows."""
    proposal = rows.record.proposal
    if rows.drawn:
        return rows.of(offered[0]) if len(offered) == 1 and offered[0] in examined else None
    if proposal.q_kind is QKind.ONE_HOT and offered:
        row = np.zeros(len(rows.record.logits[0]))
        np.add.at(row, [proposal.tree.tokens[child] for child in offered], 1.0 / len(offered))
        return RowSums.of(row)
    return None


def _fill(cells: Cells, at: int, law: RowLaw, tops: NDArray[np.int64], place: _Place) -> None:
    q, token = place.q, place.token
    ids = tops if law.ordered else largest(law.weights, TOP)
    if q is not None:
        known = set(ids.tolist())
        further = [x for x in largest(q.row, TOP).tolist() if x not in known]
        ids = np.concatenate([ids, np.array(further, dtype=np.int64)])
    count = len(ids)
    cells.cell_id[at, :count] = ids
    cells.cell_p[at, :count] = law.weights[ids] / law.mass
    cells.tail[at, 0] = law.sums.outside(ids) / law.mass
    cells.row_p[at], cells.p_below[at] = law.weights[token] / law.mass, law.sums.below(token) / law.mass
    if q is not None:
        left = RowSums.of(_surplus(law, q.row))
        cells.cell_q[at] = 0.0
        cells.cell_q[at, :count] = q.row[ids]
        cells.tail[at, 1] = q.outside(ids)
        cells.q_token[at], cells.product[at] = q.row[token], _product(law.weights, q.row) / law.mass
        cells.residual_below[at], cells.residual_sum[at] = left.below(token) / law.mass, left.total / law.mass


def _product(p: Floats, q: Floats) -> float:
    # not `p @ q`: a linear algebra library would spread it over threads, which costs more than it saves
    return float(np.einsum("i,i->", p, q))


def _surplus(law: RowLaw, q: Floats) -> Floats:
    """[V] max(p - q, 0) times the law's mass."""
    left = np.multiply(q, law.mass)
    np.subtract(law.weights, left, out=left)
    return np.maximum(left, 0.0, out=left)


@dataclass(frozen=True, slots=True)
class DraftMasses:
    """[X] of the row of q that each examined token was drawn from; NaN without one."""

    q_below: Floats
    """Mass before the token in id order."""
    q_own: Floats
    """Mass of the token."""
    q_sum: Floats
    """Mass of the row."""


def draft_masses(drafts: Sequence[DraftRows]) -> DraftMasses:
    """The masses of every examined token."""
    refusal = np.full((3, sum(len(rows.record.verdict.examined) for rows in drafts)), NAN)
    at = 0
    for rows in drafts:
        for examined in rows.record.verdict.examined:
            if rows.drawn:
                q, token = rows.of(examined.node), rows.record.proposal.tree.tokens[examined.node]
                refusal[:, at] = q.below(token), q.row[token], q.total
            at += 1
    return DraftMasses(*refusal)


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
        for item in record.verdict.examined:
            if proposal.q_kind is QKind.FULL and proposal.q is not None:
                position = record.position + depth[item.node] - 1
                yield DrawnRow(proposal.q[item.node], proposal.tree.tokens[item.node], position)
            else:
                yield None
