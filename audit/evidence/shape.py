"""Check that a trace's columns fit together, so that readers can index them safely.

It does not judge the values; replay does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from engine.core.types import Protocol, QKind, RecordLevel, Role
from engine.record.entries import numbered
from engine.record.further_columns import CELLS, EMPTY, MASKS, SPARSE
from engine.record.trace import Trace

BEST = ("best_id", "best_score")
Rule = Callable[[Trace], Iterator[str]]


def shape_fault(trace: Trace) -> str | None:
    """The first way in which the columns contradict each other, or None."""
    rules: tuple[Rule, ...] = (_step_columns, _counted_columns, _level_columns, _mask_columns, _ranges, _trees)
    return next((fault for rule in rules for fault in rule(trace)), None)


def _step_columns(trace: Trace) -> Iterator[str]:
    for name in ("n_drafted", "n_examined", "n_emitted", "q_kind"):
        if len(getattr(trace, name)) != trace.steps:
            yield f"column {name} has {len(getattr(trace, name))} entries for {trace.steps} steps"
    if len(trace.draft_version) not in (0, trace.steps):
        yield f"column draft_version has {len(trace.draft_version)} entries for {trace.steps} steps"
    for name in ("n_drafted", "n_examined"):
        if np.any(getattr(trace, name) < 0):
            yield f"column {name} holds a negative count"
    if np.any(trace.n_emitted < 1):
        yield f"step {int(np.argmax(trace.n_emitted < 1))} emitted no token"


def _counted_columns(trace: Trace) -> Iterator[str]:
    groups = (
        (trace.n_drafted, ("node_token", "node_parent")),
        (trace.n_examined, ("examined_node", "examined_accepted")),
        (trace.n_emitted, ("token", "role", "row")),
    )
    for counts, columns in groups:
        total = int(np.sum(counts, dtype=np.int64))
        for name in columns:
            if len(getattr(trace, name)) != total:
                yield f"column {name} has {len(getattr(trace, name))} entries, the steps count {total}"


def _level_columns(trace: Trace) -> Iterator[str]:
    """Faults of the columns that the level requires: missing or incomplete ones."""
    level = trace.header.level
    if level is RecordLevel.TOKENS:
        return
    promised = {
        trace.steps: ("residual_mass",),
        len(trace.node_token): ("node_uniform",),
        len(trace.examined_node): ("examined_p", "examined_q", "examined_uniform"),
        len(trace.token): ("p", "uniform", "margin"),
    }
    for length, columns in promised.items():
        for name in columns:
            if len(getattr(trace, name)) != length:
                yield f"column {name} has {len(getattr(trace, name))} entries instead of {length}"
    if level is RecordLevel.TOPK and len(trace.top_id) != len(trace.token):
        yield f"column top_id has {len(trace.top_id)} rows for {len(trace.token)} tokens"
    if level is RecordLevel.TOPK:
        yield from _cell_columns(trace)
    if level is RecordLevel.FULL:
        yield from _row_columns(trace)


def _mask_columns(trace: Trace) -> Iterator[str]:
    """Faults of the columns of a grammar's masks; a trace has all of its level, or none without a grammar."""
    if not any(len(getattr(trace, name)) for name in MASKS):
        return
    full = trace.header.level is RecordLevel.FULL
    expected = {"mask_digest": len(trace.token), "mask_count": len(trace.token)}
    expected |= {"mask_bits": len(trace.token) if full else 0, "spare_mask_bits": len(trace.spare_logits)}
    for name, rows in expected.items():
        if len(getattr(trace, name)) != rows:
            yield f"column {name} has {len(getattr(trace, name))} rows instead of {rows}"
    width = -(-trace.header.vocabulary // 8)
    if len(trace.mask_bits) and trace.mask_bits.shape[1:] != (width,):
        yield f"column mask_bits has rows of {trace.mask_bits.shape[1]} bytes instead of {width}"


def _cell_columns(trace: Trace) -> Iterator[str]:
    """Faults of the cell columns; a trace has all of them, or none if it is old."""
    if not any(len(getattr(trace, name)) for name in CELLS):
        return
    for name in CELLS:
        expected = len(trace.examined_node if name == "q_below" else trace.token)
        if len(getattr(trace, name)) != expected:
            yield f"column {name} has {len(getattr(trace, name))} rows instead of {expected}"
    if not trace.cell_id.shape == trace.cell_p.shape == trace.cell_q.shape or trace.tail.shape[1:] != (2,):
        yield "the columns of cells differ in their shape"
    yield from _kept_columns(trace)
    for name in SPARSE:
        column, length = getattr(trace, name), len(trace.token if name in BEST else trace.examined_node)
        if len(column) not in (0, length) or column.shape[1:] != EMPTY[name].shape[1:]:
            yield f"column {name} has shape {column.shape} instead of {length} rows"


def _kept_columns(trace: Trace) -> Iterator[str]:
    """Faults of the columns of kept rows; without any, all are empty."""
    rows, masked = len(trace.kept_at), bool(len(trace.mask_digest))
    shapes = {
        "kept_logits": (rows, trace.header.vocabulary) if rows else trace.kept_logits.shape,
        "kept_mask_bits": (rows, -(-trace.header.vocabulary // 8)) if rows and masked else trace.kept_mask_bits.shape,
        "kept_q_count": trace.kept_examined.shape,
        "kept_q_id": (int(trace.kept_q_count.sum(dtype=np.int64)),),
        "kept_q": trace.kept_q_id.shape,
    }
    for name, expected in shapes.items():
        if getattr(trace, name).shape != expected:
            yield f"column {name} has shape {getattr(trace, name).shape} instead of {expected}"
    for name, limit in (
        ("kept_at", len(trace.token)),
        ("kept_examined", len(trace.examined_node)),
        ("kept_q_id", trace.header.vocabulary),
    ):
        column = getattr(trace, name)
        if len(column) and int(column.max()) >= limit:
            yield f"column {name} holds {int(column.max())}, the limit is {limit}"


def _row_columns(trace: Trace) -> Iterator[str]:
    joint = trace.header.protocol is Protocol.BLOCK
    spare = int(np.sum(1 + trace.n_drafted - trace.n_emitted, dtype=np.int64)) if joint else 0
    if len(trace.spare_logits) != spare:
        yield f"column spare_logits has {len(trace.spare_logits)} rows instead of {spare}"
    for name, rows in (("logits", len(trace.token)), ("q_rows", len(trace.examined_node))):
        expected = (rows, trace.header.vocabulary)
        if getattr(trace, name).shape != expected:
            yield f"column {name} has shape {getattr(trace, name).shape} instead of {expected}"


def _ranges(trace: Trace) -> Iterator[str]:
    vocabulary = trace.header.vocabulary
    for name in ("token", "node_token"):
        column = getattr(trace, name)
        if len(column) and int(column.max()) >= vocabulary:
            yield f"column {name} holds token {int(column.max())}, the vocabulary has {vocabulary}"
    if len(trace.role) and int(trace.role.max()) > max(Role):
        yield f"column role holds {int(trace.role.max())}, which is no role"
    if len(trace.q_kind) and int(trace.q_kind.max()) > max(QKind):
        yield f"column q_kind holds {int(trace.q_kind.max())}, which is no kind of q"
    if any(token < 0 or token >= vocabulary for token in trace.header.prompt) or not trace.header.prompt:
        yield "the prompt is empty or holds a token outside the vocabulary"


def _trees(trace: Trace) -> Iterator[str]:
    nodes = numbered(trace.n_drafted)
    step = nodes.step
    wrong = np.flatnonzero((trace.node_parent < -1) | (trace.node_parent >= nodes.local))
    owner = numbered(trace.n_examined).step
    count = trace.n_drafted[owner]
    outside = np.flatnonzero((trace.examined_node < 0) | (trace.examined_node >= count))
    # report the first wrong step, whatever its kind of fault
    if len(wrong) and not (len(outside) and owner[outside[0]] < step[wrong[0]]):
        yield f"step {int(step[wrong[0]])}: a drafted node comes before its parent"
    elif len(outside):
        first = outside[0]
        yield f"step {int(owner[first])}: an examined node is not in the tree of {int(count[first])}"
