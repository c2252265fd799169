"""The recorder: step records in, one trace out.

The recorder keeps only the data that decided an emitted token, so the cost of a level is proportional to the emitted
tokens, not to the drafted ones. It reduces rows in blocks whose limits depend on the request alone, so a trace has the
same bytes for every caller and thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import FinishReason, Floats, RecordLevel, StepRecord
from engine.core.versions import DraftVersion
from engine.record.further_columns import EMPTY, KEPT, MASKS
from engine.record.kept_rows import EMITTED, EXAMINED, NODES, STEPS, RowKeeper, share_of
from engine.record.lumping import Cells, DraftMasses, empty
from engine.record.perturbed import Perturbed
from engine.record.reduction import NAN, RecordedBlock, reduce, stacked, top_count
from engine.record.trace import Trace, TraceHeader, encode

BLOCK: Final = 2**17
"""Logits reduced at once: float64 temporaries of 1 MiB, which stay in a processor's second cache."""


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
    _closed: int = 0
    """Blocks of closed windows."""
    _keeper: RowKeeper | None = None

    def step(self, record: StepRecord) -> None:
        """Keep one step; the recorder owns its arrays from now on."""
        self._waiting.append(record)
        self._rows += len(record.verdict.emitted)
        if self.header.level is RecordLevel.TOPK:
            self._hold(record)
        if self._rows * self.header.vocabulary >= BLOCK:
            self._reduce()

    def finish(self, reason: FinishReason) -> bytes:
        """The encoded trace."""
        return encode(self.trace(reason))

    def trace(self, reason: FinishReason) -> Trace:
        """The trace of all steps."""
        self._close()
        versions = {each.number: each for kept in self._kept for each in kept.versions}
        known = tuple(versions[number] for number in sorted(versions))
        whole = to_trace(replace(self.header, finish_reason=reason, draft_versions=known), self._kept)
        if self._keeper is None:
            return whole
        promised = replace(whole.header, kept_share=share_of(self.header.vocabulary))
        return replace(whole, header=promised, **self._keeper.columns())

    def _hold(self, record: StepRecord) -> None:
        """Hold the rows of a step until its window is full."""
        if self._keeper is None:
            self._keeper = RowKeeper(self.header)
        self._keeper.step(record)
        if self._keeper.full:
            self._close()

    def _close(self) -> None:
        """Reduce all steps, and end the window of held rows."""
        self._reduce()
        if self._keeper is not None:
            window = to_trace(self.header, self._kept[self._closed :])
            self._keeper.close({name: getattr(window, name) for name in (*STEPS, *NODES, *EXAMINED, *EMITTED)})
        self._closed = len(self._kept)

    def _reduce(self) -> None:
        if self._waiting:
            self._kept.append(reduce(self.header, self._waiting))
        self._waiting, self._rows = [], 0


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
        top_id=np.concatenate([np.empty((0, top_count(header)), np.uint32), *(each.top_id for each in kept)]),
        top_score=np.concatenate([np.empty((0, top_count(header))), *(each.top_score for each in kept)]),
        top_lse=_joined([each.top_lse for each in kept]),
        logits=stacked([each.logits for each in kept], header.vocabulary),
        spare_logits=stacked([each.spare_logits for each in kept if len(each.spare_logits)], header.vocabulary),
        q_rows=np.concatenate([np.empty((0, header.vocabulary)), *(each.q_rows for each in kept)]),
        **_columns_of(DraftMasses, [each.draft_masses for each in kept]),
        **_columns_of(Perturbed, [each.perturbed for each in kept]),
        **_cell_columns(kept, header),
        **_mask_columns(kept),
        **{name: EMPTY[name] for name in KEPT},
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
