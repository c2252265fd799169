"""The recorder: step records in, one trace out.

The recorder keeps only the data that decided an emitted token, so the cost of a level is proportional to the emitted
tokens, not to the drafted ones. It reduces rows in blocks whose limits depend on the request alone, so a trace has the
same bytes for every caller and thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import FinishReason, Floats, QKind, RecordLevel, StepRecord
from engine.core.versions import DraftVersion
from engine.record.further_columns import EMPTY, MASKS
from engine.record.lumping import TOP, Cells, DraftMasses, cells_of, draft_masses, empty, largest
from engine.record.perturbed import Perturbed, perturbed
from engine.record.trace import Rows, Trace, TraceHeader, encode, packed
from engine.sampling.transforms import log_sum_exp

BLOCK: Final = 2**17
"""Logits reduced at once: float64 temporaries of 1 MiB, which stay in a processor's second cache."""
NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class Masks:
    """The columns of a grammar's masks, named as in the trace; all empty without a grammar."""

    mask_digest: NDArray[np.uint64]
    mask_count: NDArray[np.int32]
    mask_bits: NDArray[np.uint8]
    spare_mask_bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """A block of steps reduced to what a level holds: E emitted tokens, X examined nodes.

    `records` have lost their rows; `logits` [E, V], `spare_logits` [R, V] and `q_rows` [X, V] are there
    at `full` only.
    """

    records: tuple[StepRecord, ...]
    logprob: Floats
    margin: Floats
    logits_digest: NDArray[np.uint64]
    top_id: NDArray[np.uint32]
    top_score: Floats
    top_lse: Floats
    logits: Rows
    spare_logits: Rows
    q_rows: Floats
    cells: Cells
    draft_masses: DraftMasses
    perturbed: Perturbed
    masks: Masks

    @property
    def versions(self) -> frozenset[DraftVersion]:
        """The versions that drafted."""
        return frozenset(each.proposal.version for each in self.records if each.proposal.version is not None)


@dataclass(slots=True)
class Recorder:
    """Collects one request's steps at a level.

    Args:
        header: the trace's header; its `finish_reason` is set by `finish`.
    """

    header: TraceHeader
    _waiting: list[StepRecord] = field(default_factory=list)
    _kept: list[RecordedBlock] = field(default_factory=list)
    _rows: int = 0

    def step(self, record: StepRecord) -> None:
        """Keep one step; the recorder owns its arrays from now on."""
        self._waiting.append(record)
        self._rows += len(record.verdict.emitted)
        if self._rows * self.header.vocabulary >= BLOCK:
            self._reduce()

    def finish(self, reason: FinishReason) -> bytes:
        """The encoded trace."""
        self._reduce()
        versions = {each.number: each for kept in self._kept for each in kept.versions}
        known = tuple(versions[number] for number in sorted(versions))
        return encode(to_trace(replace(self.header, finish_reason=reason, draft_versions=known), self._kept))

    def _reduce(self) -> None:
        if self._waiting:
            self._kept.append(reduce(self.header, self._waiting))
        self._waiting, self._rows = [], 0


def reduce(header: TraceHeader, records: list[StepRecord]) -> RecordedBlock:
    """Reduce the rows to the level's columns and release them, unless the level holds the rows themselves."""
    level = header.level
    full, scalars, lumped = (
        level is RecordLevel.FULL,
        level is not RecordLevel.TOKENS,
        level is RecordLevel.TOPK,
    )
    logits = _stacked([record.logits for record in records if scalars], header.vocabulary)
    scores = _scores(records, logits) if scalars else logits
    token = np.array([each.token for record in records for each in record.verdict.emitted if scalars], dtype=np.int64)
    top = _leads(logits)
    found = _tops(scores if lumped else scores[:0], header)
    return RecordedBlock(
        records=tuple(_without_rows(record) for record in records),
        logprob=logits[np.arange(len(token)), token] - log_sum_exp_under(logits, top.largest),
        margin=top.margin if scores is logits else _leads(scores).margin,
        logits_digest=digests(logits),
        top_id=found.ids,
        top_score=found.scores,
        top_lse=found.lse,
        logits=logits if full else logits[:0].copy(),
        spare_logits=_stacked([each.spare for each in records if full and each.spare is not None], header.vocabulary),
        q_rows=_q_rows(records if full else [], header.vocabulary),
        cells=cells_of(records, scores, header.sampling, header.coupled_draft) if lumped else empty(0, 0),
        draft_masses=draft_masses(records if lumped else []),
        perturbed=perturbed(header, records if lumped else [], scores if lumped else scores[:0]),
        masks=_masks(records, full),
    )


def _masks(records: list[StepRecord], full: bool) -> Masks:
    """Digests and counts at every level, bits at `full`; empty unless every step has masks."""
    masks = [record.allowed for record in records if record.allowed is not None]
    if not masks or len(masks) < len(records):
        return Masks(**{name: EMPTY[name] for name in MASKS})
    rows = np.concatenate(masks)
    bits = packed(rows)
    spare = [packed(each.spare_allowed) for each in records if each.spare_allowed is not None]
    return Masks(
        mask_digest=digests(bits),
        mask_count=rows.sum(axis=1).astype(np.int32),
        mask_bits=bits if full else bits[:0].copy(),
        spare_mask_bits=np.concatenate(spare) if full and spare else bits[:0].copy(),
    )


def _without_rows(record: StepRecord) -> StepRecord:
    proposal = replace(record.proposal, q=None)
    return replace(
        record,
        proposal=proposal,
        logits=record.logits[:0].copy(),
        scores=None,
        spare=None,
        allowed=None,
        spare_allowed=None,
    )


def _stacked(parts: list[Rows], vocabulary: int) -> Rows:
    return np.concatenate(parts) if parts else np.empty((0, vocabulary), np.float32)


def _scores(records: list[StepRecord], logits: Rows) -> Rows:
    """[E, V]: the logits themselves, not a copy, where no step has other scores."""
    if all(record.scores is None for record in records):
        return logits
    return np.concatenate([record.logits if record.scores is None else record.scores for record in records])


def digests(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """[E] the 8 bytes of BLAKE2b over each row's bytes, read as a little-endian number.

    Rows that differ in one bit have different digests but for a chance of 2^-64.
    """
    values = (hashlib.blake2b(row, digest_size=8).digest() for row in np.ascontiguousarray(rows))
    return np.frombuffer(b"".join(values), dtype="<u8").astype(np.uint64)


def to_trace(header: TraceHeader, kept: list[RecordedBlock]) -> Trace:
    """Columns of reduced steps at the header's level."""
    records = [record for each in kept for record in each.records]
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
        draft_version=_version_numbers([record.proposal.version for record in records]),
        draft_us=_microseconds([record.timing.draft_us for record in records]),
        verify_us=_microseconds([record.timing.verify_us for record in records]),
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
        logits_digest=np.concatenate([np.empty(0, np.uint64), *(each.logits_digest for each in kept)]),
        top_id=np.concatenate([np.empty((0, _top_count(header)), np.uint32), *(each.top_id for each in kept)]),
        top_score=np.concatenate([np.empty((0, _top_count(header))), *(each.top_score for each in kept)]),
        top_lse=_joined([each.top_lse for each in kept]),
        logits=_stacked([each.logits for each in kept], header.vocabulary),
        spare_logits=_stacked([each.spare_logits for each in kept if len(each.spare_logits)], header.vocabulary),
        q_rows=np.concatenate([np.empty((0, header.vocabulary)), *(each.q_rows for each in kept)]),
        **_columns_of(DraftMasses, [each.draft_masses for each in kept]),
        **_columns_of(Perturbed, [each.perturbed for each in kept]),
        **_cell_columns(kept, header),
        **_mask_columns(kept),
    )


def _columns_of(
    kind: type[DraftMasses | Perturbed], parts: Sequence[DraftMasses | Perturbed]
) -> dict[str, NDArray[Any]]:
    """The columns of all blocks, named as in the trace."""
    names = [column.name for column in fields(kind)]
    first = {name: EMPTY.get(name, np.empty(0)) for name in names}
    return {name: np.concatenate([first[name], *(getattr(part, name) for part in parts)]) for name in names}


def _mask_columns(kept: list[RecordedBlock]) -> dict[str, NDArray[Any]]:
    masked = [each.masks for each in kept if len(each.masks.mask_digest)]
    if len(masked) < len(kept) or not kept:
        return {name: EMPTY[name] for name in MASKS}
    return {name: np.concatenate([getattr(each, name) for each in masked]) for name in MASKS}


def _cell_columns(kept: list[RecordedBlock], header: TraceHeader) -> dict[str, NDArray[Any]]:
    first = empty(0, header.vocabulary if header.level is RecordLevel.TOPK else 0)
    parts = [first, *(each.cells for each in kept if header.level is RecordLevel.TOPK)]
    return {column.name: np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Cells)}


def _microseconds(values: list[int]) -> NDArray[np.int32]:
    """Wall times, at most 35 minutes: a machine that slept during a step gives longer ones."""
    return np.minimum(np.array(values, dtype=np.int64), np.iinfo(np.int32).max).astype(np.int32)


def _version_numbers(versions: list[DraftVersion | None]) -> NDArray[np.int32]:
    """[S] -1 for a step without a version; empty if no step has one."""
    said = any(version is not None for version in versions)
    return np.array([-1 if each is None else each.number for each in versions if said], dtype=np.int32)


def _numbers(values: list[float], kept: bool) -> Floats:
    return np.array(values if kept else [], dtype=np.float64)


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _draft_uniforms(records: list[StepRecord]) -> Floats:
    parts = [
        record.proposal.uniforms if record.proposal.uniforms is not None else np.full(len(record.proposal.tree), NAN)
        for record in records
    ]
    return np.concatenate(parts) if parts else np.empty(0)


@dataclass(frozen=True, slots=True)
class _Leads:
    """[E] the largest entry of each row, and by how much it leads the second."""

    largest: Floats
    margin: Floats


def _leads(rows: Rows) -> _Leads:
    """Two passes for a maximum cost a tenth of one partition; `rows` is as before afterwards."""
    at = (np.arange(len(rows)), rows.argmax(axis=-1))
    largest = rows[at]
    rows[at] = -np.inf
    second = rows.max(axis=-1)
    rows[at] = largest
    wide = largest.astype(np.float64)
    return _Leads(wide, wide - second.astype(np.float64))


def log_sum_exp_under(rows: Rows, largest: Floats) -> Floats:
    """[E] log of the summed exponentials of each row [E, V] whose `largest` entry [E] is known, in float64."""
    weights = np.subtract(rows, largest[:, None], dtype=np.float64)
    np.exp(weights, out=weights)
    return np.asarray(largest + np.log(weights.sum(axis=-1)))


@dataclass(frozen=True, slots=True)
class _Tops:
    ids: NDArray[np.uint32]
    scores: Floats
    lse: Floats


def _top_count(header: TraceHeader) -> int:
    """Entries per row; 0 below and above `topk`, where the columns are empty."""
    return min(TOP, header.vocabulary) if header.level is RecordLevel.TOPK else 0


def _tops(scores: Rows, header: TraceHeader) -> _Tops:
    wide = scores.astype(np.float64)
    count = _top_count(header)
    ids = np.array([largest(row, count) for row in wide], dtype=np.int64).reshape(len(wide), count)
    scaled = wide / (header.sampling.temperature or 1.0)
    return _Tops(ids.astype(np.uint32), np.take_along_axis(wide, ids, axis=-1), log_sum_exp(scaled))


def _q_rows(records: list[StepRecord], vocabulary: int) -> Floats:
    """[X, V]; a one-hot row is rebuilt from its token, an unknown q is a row of NaN."""
    rows = np.full((sum(len(record.verdict.examined) for record in records), vocabulary), NAN)
    at = 0
    for record in records:
        nodes = [each.node for each in record.verdict.examined]
        block, proposal = rows[at : at + len(nodes)], record.proposal
        if proposal.q_kind is QKind.FULL and proposal.q is not None:
            block[:] = proposal.q[nodes]
        elif proposal.q_kind is QKind.ONE_HOT:
            block[:] = 0.0
            block[np.arange(len(nodes)), [proposal.tree.tokens[node] for node in nodes]] = 1.0
        at += len(nodes)
    return rows
