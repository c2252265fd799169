"""The distributions behind a trace's emitted tokens, and the tokens drafted at each one's place, as arrays.

At level `full`, p of every emitted token is recomputed from its logits row, and q of its position from the tokens
drafted there. At `topk` both come from the recorded cells: a token is then the number of its cell, and the last cell is
the tail. `LumpedDecisions` holds the numbers that cells cannot give exactly.

The source of drafted tokens is the step's tree, never the list of examined nodes alone: the drafted tokens are fixed
before the target draws its token, the examined ones are not. Chains are read without a loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import ArmRecord, RequestRecord
from engine.core.types import Floats, Protocol, QKind, RecordLevel, Role
from engine.record.columns import shape_fault
from engine.record.rows.lumping import PAD
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.transforms import TransformedRow, plain_laws, transform

TAIL = -1
"""In `LumpedDecisions.ids`: the cell that holds all other tokens."""
UNUSED = -2
EMPTY = "the arm has no requests"
Indices = NDArray[np.int64]
NO_NODE = -1


@dataclass(frozen=True, slots=True)
class CellsBesideRows:
    """Cells [n, k] of n rows: which are used, which name a token of the vocabulary, and the rows' values there.

    held: 0 where a cell is unused; meaningless where it names no token. twice: [n] a token has two cells.
    """

    used: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    held: Floats
    twice: NDArray[np.bool_]


def cells_beside(ids: NDArray[np.int64], rows: Floats) -> CellsBesideRows:
    """Compare the tokens `ids` [n, k] of cells with whole rows [n, V]; PAD marks an unused cell."""
    used, inside = ids != PAD, ids < rows.shape[1]
    held = np.where(used, np.take_along_axis(rows, np.where(used & inside, ids, 0), axis=1), 0.0)
    ordered = np.sort(ids, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PAD)).any(axis=1)
    return CellsBesideRows(used, inside, held, twice)


@dataclass(frozen=True, slots=True)
class DraftPlaces:
    """One trace's E emitted tokens."""

    step: Indices
    depth: Indices
    """Position in the block: 0 for the first token of a step."""
    kind: Indices
    """`QKind` of the step."""
    offered: tuple[tuple[int, ...], ...] | None
    """The tokens drafted at each place; None for a chain, where `drafted` is enough."""
    drafted: Indices
    """The drafted token if there is exactly one, else `NO_NODE`."""
    candidates: Indices
    """Number of drafted tokens."""
    examined: Indices
    """Index of the first drafted node in the examined ones, `NO_NODE` if absent."""


def places(trace: Trace) -> DraftPlaces:
    """The places of a well-formed trace."""
    first = np.concatenate([[0], np.cumsum(trace.n_drafted, dtype=np.int64)])
    local = np.arange(len(trace.node_token)) - np.repeat(first[:-1], trace.n_drafted)
    return _chain(trace, first) if np.array_equal(trace.node_parent, local - 1) else _tree(trace)


def _chain(trace: Trace, first: Indices) -> DraftPlaces:
    step = np.repeat(np.arange(trace.steps), trace.n_emitted)
    begin = np.concatenate([[0], np.cumsum(trace.n_emitted, dtype=np.int64)])[:-1]
    depth = np.arange(len(step)) - begin[step]
    inside = depth < trace.n_drafted[step]
    node = np.where(inside, first[step] + depth, 0)
    token = trace.node_token[node].astype(np.int64) if len(trace.node_token) else np.zeros(len(step), np.int64)
    kept = inside & (token == trace.token) & (trace.role == Role.ACCEPTED)
    left = np.cumsum(~kept) - ~kept
    # each place offers the next token of the path, until an emitted token leaves the path
    offered = inside & (left == left[begin[step]])
    row = np.full(len(trace.node_token) + 1, NO_NODE, dtype=np.int64)
    owner = np.repeat(np.arange(trace.steps), trace.n_examined)
    row[(first[owner] + trace.examined_node)[::-1]] = np.arange(len(owner))[::-1]
    return DraftPlaces(
        step=step,
        depth=depth,
        kind=trace.q_kind[step].astype(np.int64),
        offered=None,
        drafted=np.where(offered, token, NO_NODE),
        candidates=offered.astype(np.int64),
        examined=np.where(offered, row[node], NO_NODE),
    )


def _tree(trace: Trace) -> DraftPlaces:
    steps = [item for view in steps_of(trace) for item in _walk(trace, view)]

    def column(values: Iterator[int]) -> Indices:
        return np.fromiter(values, dtype=np.int64, count=len(steps))

    return DraftPlaces(
        step=column(item.step for item in steps),
        depth=column(item.depth for item in steps),
        kind=column(int(item.kind) for item in steps),
        offered=tuple(item.tokens for item in steps),
        drafted=column(item.tokens[0] if len(item.tokens) == 1 else NO_NODE for item in steps),
        candidates=column(len(item.tokens) for item in steps),
        examined=column(item.examined for item in steps),
    )


@dataclass(frozen=True, slots=True)
class _TokenPlace:
    step: int
    depth: int
    kind: QKind
    tokens: tuple[int, ...]
    examined: int


def _walk(trace: Trace, view: StepView) -> Iterator[_TokenPlace]:
    """Follow the emitted tokens down the step's tree."""
    tokens = [int(token) for token in trace.node_token[view.nodes]]
    parents = [int(parent) for parent in trace.node_parent[view.nodes]]
    examined = [int(node) for node in trace.examined_node[view.examined]]
    node = NO_NODE
    lost = False
    for depth, at in enumerate(range(view.emitted.start, view.emitted.stop)):
        offered = [] if lost else [child for child, parent in enumerate(parents) if parent == node]
        row = view.examined.start + examined.index(offered[0]) if offered and offered[0] in examined else NO_NODE
        yield _TokenPlace(view.index, depth, view.q_kind, tuple(tokens[child] for child in offered), row)
        kept = [child for child in offered if tokens[child] == int(trace.token[at])]
        lost = not kept or int(trace.role[at]) != Role.ACCEPTED
        node = kept[0] if kept else NO_NODE


@dataclass(frozen=True, slots=True)
class LumpedDecisions:
    """Exact numbers from the whole rows, for E tokens on C cells; NaN if q is unknown."""

    ids: Indices
    """[E, C] the token of each cell, TAIL or UNUSED."""
    token: Indices
    """[E] the emitted tokens themselves."""
    refused: Indices
    """[E] the only drafted token itself, or NO_NODE."""
    p: Floats
    """[E] of the emitted token."""
    q: Floats
    p_below: Floats
    """[E] mass before the emitted token in id order."""
    residual_below: Floats
    residual_sum: Floats
    product: Floats
    drafted_p: Floats
    """[E] of the only drafted token, NaN without one."""
    drafted_q: Floats


@dataclass(frozen=True, slots=True)
class Decisions:
    """One request's E emitted tokens on V tokens or cells."""

    request: str
    domain: str
    protocol: Protocol
    coupled: bool
    step: NDArray[np.int64]
    depth: NDArray[np.int64]
    """[E] position in the block: 0 for the first token of a step."""
    token: NDArray[np.int64]
    role: NDArray[np.int64]
    p: Floats
    """[E, V]"""
    q: Floats
    """[E, V] law of the draft at the position (the mean of one-hot rows in a tree);
    NaN without a draft or if its law is unknown."""
    drafted: NDArray[np.int64]
    """[E] the drafted token if exactly one was, else -1."""
    candidates: NDArray[np.int64]
    """[E] number of tokens drafted at the position."""
    one_hot: NDArray[np.bool_]
    """[E] the drafted tokens were functions of the prefix."""
    lumped: LumpedDecisions | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """[E] true if q is known."""
        return ~np.isnan(self.q[:, 0])


def unreadable(arm: ArmRecord, cells: bool = False) -> str | None:
    """Why an arm's decisions cannot be recomputed, or None; with `cells`, level `topk` is enough."""
    if not arm.requests:
        return EMPTY
    reasons = (unreadable_request(request, cells) for request in arm.requests)
    return next((reason for reason in reasons if reason is not None), None)


def unreadable_request(
    request: RequestRecord, cells: bool = False, shape_of: Callable[[Trace], str | None] = shape_fault
) -> str | None:
    """The same for one request."""
    trace, level = request.trace, request.trace.header.level
    lumped = cells and level is RecordLevel.TOPK
    if level is not RecordLevel.FULL and not lumped:
        needed = "topk or full" if cells else "full"
        return f"request {request.request_id} was recorded at level {level}, rows need {needed}"
    fault = shape_of(trace)
    if fault is not None:
        return f"request {request.request_id}: the record contradicts itself ({fault}); see the replay check"
    if not trace.steps:
        return f"request {request.request_id}: the record holds no step"
    if np.any(np.isnan(trace.cell_p if lumped else trace.logits)):
        return f"request {request.request_id}: {'a cell' if lumped else 'a logits row'} holds NaN"
    return None


def decisions(request: RequestRecord) -> Decisions:
    """Recompute one request with a readable, well-formed trace."""
    return _decisions(request.trace, request.request_id, request.domain)


def lumped_decisions(trace: Trace) -> Decisions:
    """Read one trace at level `topk` with cells."""
    return _decisions(trace, trace.header.request, "")


def _decisions(trace: Trace, name: str, domain: str) -> Decisions:
    result = places(trace)
    lumped = _lumped(trace, result) if trace.header.level is RecordLevel.TOPK else None
    return Decisions(
        request=name,
        domain=domain,
        protocol=trace.header.protocol,
        coupled=trace.header.coupled_draft,
        step=result.step,
        depth=result.depth,
        token=trace.token.astype(np.int64) if lumped is None else cell_of(lumped.ids, lumped.token),
        role=trace.role.astype(np.int64),
        p=distributions(trace) if lumped is None else _law(trace.cell_p, trace.tail[:, 0]),
        q=_q_rows(trace, result) if lumped is None else _q_cells(trace, result),
        drafted=result.drafted if lumped is None else _drafted_cells(lumped),
        candidates=result.candidates,
        one_hot=result.kind == QKind.ONE_HOT,
        lumped=lumped,
    )


def distributions(trace: Trace) -> Floats:
    """[E, V] p of every emitted token."""
    if trace.header.sampling.plain_scores:
        return plain_laws(trace.logits, trace.header.sampling)
    rows = [deciding_row(trace, index).p for index in range(len(trace.logits))]
    return np.stack(rows) if rows else np.empty((0, trace.header.vocabulary))


def deciding_rows(trace: Trace, begin: int, end: int) -> TransformedRow:
    """`deciding_row` of the emitted tokens from `begin` to before `end`, at least one: arrays [end - begin, V]."""
    logits, sampling = trace.logits[begin:end], trace.header.sampling
    if sampling.plain_scores:
        return TransformedRow(logits.astype(np.float64), plain_laws(logits, sampling))
    rows = [deciding_row(trace, index) for index in range(begin, end)]
    return TransformedRow(np.stack([row.scores for row in rows]), np.stack([row.p for row in rows]))


def deciding_row(trace: Trace, index: int) -> TransformedRow:
    """The row that decided an emitted token, transformed given the tokens before it; the trace must hold rows."""
    header = trace.header
    history = [*header.prompt, *trace.token[:index].tolist()]
    start, allowed = len(header.prompt), trace.allowed(index)
    return transform(trace.logits[index], history, start, header.sampling, header.eos_ids, allowed)


def _q_rows(trace: Trace, result: DraftPlaces) -> Floats:
    rows = np.full((len(result.step), trace.header.vocabulary), np.nan)
    # a coupled draft used the target's noise, so conditioning on its token is not valid
    fixed = (result.kind == QKind.ONE_HOT) & (result.candidates > 0) & (not trace.header.coupled_draft)
    for i in np.flatnonzero(fixed):
        rows[i] = 0.0
        tokens = (int(result.drafted[i]),) if result.offered is None else result.offered[i]
        np.add.at(rows[i], list(tokens), 1.0 / len(tokens))
    drawn = (result.kind == QKind.FULL) & (result.candidates == 1) & (result.examined != NO_NODE)
    rows[drawn] = trace.q_rows[result.examined[drawn]]
    return rows


def _lumped(trace: Trace, result: DraftPlaces) -> LumpedDecisions:
    ids = trace.cell_id.astype(np.int64)
    ids[ids == PAD] = UNUSED
    one = (result.candidates == 1) & (result.examined != NO_NODE)
    drafted = np.full((2, len(result.step)), np.nan)
    drafted[:, one] = trace.examined_p[result.examined[one]], trace.examined_q[result.examined[one]]
    return LumpedDecisions(
        ids=np.concatenate([ids, np.full((len(ids), 1), TAIL)], axis=1),
        token=trace.token.astype(np.int64),
        refused=result.drafted,
        p=trace.row_p,
        q=trace.q_token,
        p_below=trace.p_below,
        residual_below=trace.residual_below,
        residual_sum=trace.residual_sum,
        product=trace.product,
        drafted_p=drafted[0],
        drafted_q=drafted[1],
    )


def own_cell(ids: Indices, token: Indices) -> Indices:
    """[E] the cell in `ids` [E, C] of each token [E], NO_NODE if it has none of its own."""
    same = ids == np.where(token >= 0, token, UNUSED - 1)[:, None]
    return np.where(same.any(axis=1), same.argmax(axis=1), NO_NODE)


def cell_of(ids: Indices, token: Indices) -> Indices:
    """[E] the cell of each token, the tail if it has none of its own."""
    own = own_cell(ids, token)
    return np.where(own == NO_NODE, ids.shape[1] - 1, own)


def _drafted_cells(lumped: LumpedDecisions) -> Indices:
    return np.where(lumped.refused == NO_NODE, NO_NODE, cell_of(lumped.ids, lumped.refused))


def _law(cells: NDArray[np.floating], tail: Floats) -> Floats:
    """[E, C + 1] cells and tail in float64, normalised because cells are rounded to float32."""
    law = np.concatenate([cells, tail[:, None]], axis=1, dtype=np.float64)
    # checks report a damaged cell; this division must not raise on it
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(law / law.sum(axis=1, keepdims=True))


def _q_cells(trace: Trace, result: DraftPlaces) -> Floats:
    rows = _law(trace.cell_q, trace.tail[:, 1])
    if trace.header.coupled_draft:
        rows[result.kind == QKind.ONE_HOT] = np.nan
    return rows


def steps_by_token(trace: Trace) -> list[int]:
    """[E] index of the step that emitted each token."""
    return np.repeat(np.arange(trace.steps), trace.n_emitted).tolist()
