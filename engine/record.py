"""The recorder: step records in, one trace out.

Keeps only what decided an emitted token, so that the cost of a level is
proportional to what was emitted, not to what was drafted. Knows nothing about
where the bytes go.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from engine.sampling import log_sum_exp
from engine.trace import Header, Trace, encode
from engine.types import Examined, FinishReason, Floats, QKind, RecordLevel, StepRecord

TOP = 20
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Kept:
    """One step reduced to what a level holds; E emitted tokens, rows only at `full`."""

    record: StepRecord
    logprob: Floats
    margin: Floats
    top_id: NDArray[np.uint32]
    top_score: Floats
    top_lse: Floats


@dataclass(slots=True)
class Recorder:
    """Collects one request's steps at a level.

    Args:
        header: the trace's header; its `finish_reason` is set by `finish`.
    """

    header: Header
    _kept: list[Kept] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Keep one step, reduced to what the level holds."""
        self._kept.append(reduce(self.header, record))

    def finish(self, reason: FinishReason) -> bytes:
        """The encoded trace."""
        return encode(to_trace(replace(self.header, finish_reason=reason), self._kept))


def reduce(header: Header, record: StepRecord) -> Kept:
    """Take from the rows what the level holds and let them go, unless it holds the rows themselves."""
    level = header.level
    scalars, tops = level is not RecordLevel.TOKENS, level is RecordLevel.TOPK
    rows, scores = (record.logits, record.scores) if scalars else (record.logits[:0], record.scores[:0])
    token = np.array([each.token for each in record.verdict.emitted], dtype=np.int64)
    found = _tops(scores if tops else scores[:0], header)
    return Kept(
        record=_without_rows(record, level),
        logprob=_logprobs(rows, token[: len(rows)]),
        margin=_margins(scores),
        top_id=found.ids,
        top_score=found.scores,
        top_lse=found.lse,
    )


def _without_rows(record: StepRecord, level: RecordLevel) -> StepRecord:
    """At `full` the logits and the q rows of examined nodes stay, below it neither; scores never do."""
    full, q = level is RecordLevel.FULL, record.proposal.q
    nodes = [each.node for each in record.verdict.examined]
    return replace(
        record,
        proposal=replace(record.proposal, q=q[nodes] if full and q is not None else None),
        logits=record.logits if full else record.logits[:0].copy(),
        scores=record.scores[:0].copy(),
    )


def to_trace(header: Header, kept: list[Kept]) -> Trace:
    """Columns of reduced steps at the header's level."""
    records = [each.record for each in kept]
    full = header.level is RecordLevel.FULL
    scalars = header.level is not RecordLevel.TOKENS
    emitted = [each for record in records for each in record.verdict.emitted]
    examined = [each for record in records for each in record.verdict.examined]
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
        token=np.array([each.token for each in emitted], dtype=np.uint32),
        role=np.array([each.role for each in emitted], dtype=np.uint8),
        row=np.array([each.row for each in emitted], dtype=np.int16),
        p=_numbers([each.p for each in emitted], scalars),
        uniform=_numbers([each.uniform for each in emitted], scalars),
        logprob=_joined([each.logprob for each in kept]),
        margin=_joined([each.margin for each in kept]),
        top_id=np.concatenate([np.empty((0, _top_count(header)), np.uint32), *(each.top_id for each in kept)]),
        top_score=np.concatenate([np.empty((0, _top_count(header))), *(each.top_score for each in kept)]),
        top_lse=_joined([each.top_lse for each in kept]),
        logits=_rows([record.logits for record in records], header.vocabulary),
        q_rows=_q_rows(records, examined, header.vocabulary) if full else np.empty((0, header.vocabulary)),
    )


def _numbers(values: list[float], kept: bool) -> Floats:
    return np.array(values if kept else [], dtype=np.float64)


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


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
    return np.asarray(rows[np.arange(len(token)), token] - log_sum_exp(rows), dtype=np.float64)


def _margins(scores: Floats) -> Floats:
    largest = np.partition(scores, -2, axis=-1)[:, -2:]
    return np.asarray(largest[:, 1] - largest[:, 0])


@dataclass(frozen=True, slots=True)
class _Tops:
    ids: NDArray[np.uint32]
    scores: Floats
    lse: Floats


def _top_count(header: Header) -> int:
    """Entries per row; 0 below and above `topk`, where the columns are empty."""
    return min(TOP, header.vocabulary) if header.level is RecordLevel.TOPK else 0


def _tops(scores: Floats, header: Header) -> _Tops:
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, : _top_count(header)]
    temperature = header.sampling.temperature or 1.0
    lse = log_sum_exp(scores / temperature)
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
