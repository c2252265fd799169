"""The recorder: step records in, one trace out.

Keeps only what decided an emitted token, so that the cost of a level is
proportional to what was emitted, not to what was drafted. Knows nothing about
where the bytes go.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import logsumexp

from engine.trace import Header, Trace, encode
from engine.types import Examined, FinishReason, Floats, QKind, RecordLevel, StepRecord

TOP = 20
NAN = float("nan")


@dataclass(slots=True)
class Recorder:
    """Collects one request's steps at a level.

    Args:
        header: the trace's header; its `finish_reason` is set by `finish`.
    """

    header: Header
    _records: list[StepRecord] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Keep one step, reduced to what the level holds."""
        self._records.append(_reduce(record, self.header.level))

    def finish(self, reason: FinishReason) -> bytes:
        """The encoded trace."""
        return encode(to_trace(replace(self.header, finish_reason=reason), self._records))


def _reduce(record: StepRecord, level: RecordLevel) -> StepRecord:
    """Keep only the q rows of examined nodes, and those only where rows are kept at all."""
    q = record.proposal.q
    if q is None:
        return record
    nodes = [each.node for each in record.verdict.examined]
    kept = q[nodes] if level is RecordLevel.FULL else None
    return replace(record, proposal=replace(record.proposal, q=kept))


def to_trace(header: Header, records: list[StepRecord]) -> Trace:
    """Columns of reduced records at the header's level."""
    full = header.level is RecordLevel.FULL
    scalars = header.level is not RecordLevel.TOKENS
    emitted = [each for record in records for each in record.verdict.emitted]
    examined = [each for record in records for each in record.verdict.examined]
    scores = _rows([record.scores for record in records], header.vocabulary)
    logits = _rows([record.logits for record in records], header.vocabulary)
    tops = _tops(scores, header) if header.level is RecordLevel.TOPK else _no_tops()
    token = np.array([each.token for each in emitted], dtype=np.uint32)
    return Trace(
        header=header,
        position=np.array([record.position for record in records], dtype=np.int32),
        n_drafted=np.array([len(record.proposal.tree) for record in records], dtype=np.int16),
        n_examined=np.array([len(record.verdict.examined) for record in records], dtype=np.int16),
        n_emitted=np.array([len(record.verdict.emitted) for record in records], dtype=np.int16),
        q_kind=np.array([record.proposal.q_kind for record in records], dtype=np.uint8),
        residual_mass=np.array([record.verdict.residual_mass for record in records if scalars], dtype=np.float64),
        draft_us=np.array([record.timing.draft_us for record in records], dtype=np.int32),
        verify_us=np.array([record.timing.verify_us for record in records], dtype=np.int32),
        batch=np.array([record.timing.batch for record in records], dtype=np.int16),
        node_token=np.array([t for record in records for t in record.proposal.tree.tokens], dtype=np.uint32),
        node_parent=np.array([i for record in records for i in record.proposal.tree.parents], dtype=np.int16),
        node_uniform=_draft_uniforms(records) if scalars else np.empty(0),
        examined_node=np.array([each.node for each in examined], dtype=np.int16),
        examined_p=_numbers([each.p for each in examined], scalars),
        examined_q=_numbers([each.q for each in examined], scalars),
        examined_uniform=_numbers([each.uniform for each in examined], scalars),
        examined_accepted=np.array([each.accepted for each in examined], dtype=np.uint8),
        token=token,
        role=np.array([each.role for each in emitted], dtype=np.uint8),
        row=np.array([each.row for each in emitted], dtype=np.int16),
        p=_numbers([each.p for each in emitted], scalars),
        uniform=_numbers([each.uniform for each in emitted], scalars),
        logprob=_logprobs(logits, token) if scalars else np.empty(0),
        margin=_margins(scores) if scalars else np.empty(0),
        top_id=tops.ids,
        top_score=tops.scores,
        top_lse=tops.lse,
        logits=logits if full else logits[:0],
        q_rows=_q_rows(records, examined, header.vocabulary) if full else np.empty((0, header.vocabulary)),
    )


def _numbers(values: list[float], kept: bool) -> Floats:
    return np.array(values if kept else [], dtype=np.float64)


def _rows(parts: list[np.ndarray], vocabulary: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty((0, vocabulary))


def _draft_uniforms(records: list[StepRecord]) -> Floats:
    parts = [
        record.proposal.uniforms if record.proposal.uniforms is not None else np.full(len(record.proposal.tree), NAN)
        for record in records
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _logprobs(logits: np.ndarray, token: np.ndarray) -> Floats:
    rows = logits.astype(np.float64)
    picked = rows[np.arange(len(token)), token.astype(np.int64)]
    return np.asarray(picked - logsumexp(rows, axis=-1), dtype=np.float64)


def _margins(scores: Floats) -> Floats:
    largest = np.partition(scores, -2, axis=-1)[:, -2:]
    return np.asarray(largest[:, 1] - largest[:, 0])


@dataclass(frozen=True, slots=True)
class _Tops:
    ids: np.ndarray
    scores: Floats
    lse: Floats


def _no_tops() -> _Tops:
    return _Tops(np.empty((0, 0), dtype=np.uint32), np.empty((0, 0)), np.empty(0))


def _tops(scores: Floats, header: Header) -> _Tops:
    count = min(TOP, header.vocabulary)
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, :count]
    temperature = header.sampling.temperature or 1.0
    lse = np.asarray(logsumexp(scores / temperature, axis=-1), dtype=np.float64)
    return _Tops(ids.astype(np.uint32), np.take_along_axis(scores, ids, axis=-1), lse)


def _q_rows(records: list[StepRecord], examined: list[Examined], vocabulary: int) -> Floats:
    """[X, V]; a one-hot row is rebuilt from its token, an unknown q is a row of NaN."""
    rows = np.full((len(examined), vocabulary), NAN)
    at = 0
    for record in records:
        for offset, each in enumerate(record.verdict.examined):
            if record.proposal.q_kind is QKind.FULL and record.proposal.q is not None:
                rows[at] = record.proposal.q[offset]
            elif record.proposal.q_kind is QKind.ONE_HOT:
                rows[at] = 0.0
                rows[at, record.proposal.tree.tokens[each.node]] = 1.0
            at += 1
    return rows
