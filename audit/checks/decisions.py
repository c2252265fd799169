"""The distributions behind a trace's emitted tokens, as arrays.

Recomputes p of every emitted token from its logits row, and q of its position
from what was drafted there. Which tokens were drafted at a position, and from
which q, is known before the target's token is drawn; which of them were tried
is not, so the tree is read here and never the list of examined nodes alone.
Knows nothing about tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.shape import shape_fault
from audit.records import ArmRecord, RequestRecord
from engine.sampling import Transformed, transform
from engine.trace import StepView, Trace, steps_of
from engine.types import Floats, Protocol, QKind, RecordLevel, Role

NO_NODE = -1


@dataclass(frozen=True, slots=True)
class Decisions:
    """One request's E emitted tokens."""

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
    """[E, V] law of what was drafted at the position (the mean of one-hot rows in a
    tree); NaN where nothing was drafted or its law is not known."""
    drafted: NDArray[np.int64]
    """[E] the drafted token if exactly one was, else -1."""
    candidates: NDArray[np.int64]
    """[E] number of tokens drafted at the position."""
    one_hot: NDArray[np.bool_]
    """[E] the drafted tokens were functions of the prefix."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """[E] whether q is known."""
        return ~np.isnan(self.q[:, 0])


def unreadable(arm: ArmRecord) -> str | None:
    """Why an arm's decisions cannot be recomputed, or None."""
    if not arm.requests:
        return "the arm has no requests"
    for request in arm.requests:
        if request.trace.header.level is not RecordLevel.FULL:
            return f"request {request.request_id} was recorded at level {request.trace.header.level}, rows need full"
        fault = shape_fault(request.trace)
        if fault is not None:
            return f"request {request.request_id}: the record contradicts itself ({fault}); see the replay check"
        if not request.trace.steps:
            return f"request {request.request_id}: the record holds no step"
        if np.any(np.isnan(request.trace.logits)):
            return f"request {request.request_id}: a logits row holds NaN"
    return None


def decisions(request: RequestRecord) -> Decisions:
    """Recompute one request; its trace is at level full and in shape."""
    trace = request.trace
    parts = [part for view in steps_of(trace) for part in _walk(trace, view)]
    return Decisions(
        request=request.request_id,
        domain=request.domain,
        protocol=trace.header.protocol,
        coupled=trace.header.coupled_draft,
        step=np.array([part.step for part in parts], dtype=np.int64),
        depth=np.array([part.depth for part in parts], dtype=np.int64),
        token=trace.token.astype(np.int64),
        role=trace.role.astype(np.int64),
        p=distributions(trace),
        q=_q_rows(trace, parts),
        drafted=np.array([part.tokens[0] if len(part.tokens) == 1 else NO_NODE for part in parts], dtype=np.int64),
        candidates=np.array([len(part.tokens) for part in parts], dtype=np.int64),
        one_hot=np.array([part.kind is QKind.ONE_HOT for part in parts], dtype=np.bool_),
    )


def distributions(trace: Trace) -> Floats:
    """[E, V] p of every emitted token."""
    rows = [deciding_row(trace, index).p for index in range(len(trace.logits))]
    return np.stack(rows) if rows else np.empty((0, trace.header.vocabulary))


def deciding_row(trace: Trace, index: int) -> Transformed:
    """The row that decided an emitted token, transformed after the tokens before it; the trace holds rows."""
    header = trace.header
    history = [*header.prompt, *trace.token[:index].tolist()]
    return transform(trace.logits[index], history, len(header.prompt), header.sampling, header.eos_ids)


@dataclass(frozen=True, slots=True)
class _Place:
    """What was drafted at one emitted token's position."""

    step: int
    depth: int
    kind: QKind
    tokens: tuple[int, ...]
    examined: int
    """Index into the q rows, -1 if the only drafted token was not examined."""


def _walk(trace: Trace, view: StepView) -> Iterator[_Place]:
    """Follow the emitted tokens down the step's tree."""
    tokens = [int(token) for token in trace.node_token[view.nodes]]
    parents = [int(parent) for parent in trace.node_parent[view.nodes]]
    examined = [int(node) for node in trace.examined_node[view.examined]]
    node = NO_NODE
    lost = False
    for depth, at in enumerate(range(view.emitted.start, view.emitted.stop)):
        offered = [] if lost else [child for child, parent in enumerate(parents) if parent == node]
        row = view.examined.start + examined.index(offered[0]) if offered and offered[0] in examined else NO_NODE
        yield _Place(view.index, depth, view.q_kind, tuple(tokens[child] for child in offered), row)
        kept = [child for child in offered if tokens[child] == int(trace.token[at])]
        lost = not kept or int(trace.role[at]) != Role.ACCEPTED
        node = kept[0] if kept else NO_NODE


def _q_rows(trace: Trace, places: Sequence[_Place]) -> Floats:
    rows = np.full((len(places), trace.header.vocabulary), np.nan)
    for i, place in enumerate(places):
        # a coupled draft looked at the target's noise: its token says nothing that may be conditioned on
        if place.kind is QKind.ONE_HOT and place.tokens and not trace.header.coupled_draft:
            rows[i] = 0.0
            np.add.at(rows[i], list(place.tokens), 1.0 / len(place.tokens))
        elif place.kind is QKind.FULL and len(place.tokens) == 1 and place.examined != NO_NODE:
            rows[i] = trace.q_rows[place.examined]
    return rows
