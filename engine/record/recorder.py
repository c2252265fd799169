"""The recorder: step records in, one trace out.

The recorder keeps only the data that decided an emitted token, so the cost of a level is proportional to the emitted
tokens, not to the drafted ones. It reduces rows in blocks whose limits depend on the request alone, so a trace has the
same bytes for every caller and thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from engine.core.types import FinishReason, RecordLevel, StepRecord
from engine.core.versions import DraftVersion
from engine.record.columns import BY_NAME, COMMITTED, MASKS, empty
from engine.record.rows.kept_rows import RowKeeper, share_of
from engine.record.rows.reduction import NAN, RecordedBlock, columns_of, reduce
from engine.record.trace import Trace, TraceHeader, encode

BLOCK: Final = 2**17
"""Logits reduced at once: float64 temporaries of 1 MiB, which stay in a processor's second cache."""
LONGEST_US: Final = 2**31 - 1
"""35 minutes: a machine that slept during a step gives longer times, which a column cannot hold."""


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
        versions = {version.number: version for kept in self._kept for version in kept.versions}
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
            self._keeper.close({column.name: getattr(window, column.name) for column in COMMITTED})
        self._closed = len(self._kept)

    def _reduce(self) -> None:
        if self._waiting:
            self._kept.append(reduce(self.header, self._waiting))
        self._waiting, self._rows = [], 0


def to_trace(header: TraceHeader, kept: list[RecordedBlock]) -> Trace:
    """Columns of reduced steps at the header's level."""
    columns = empty(header.vocabulary)
    stated = _stated([record for block in kept for record in block.records])
    columns |= {
        name: np.array(values, columns[name].dtype)
        for name, values in stated.items()
        if header.level in BY_NAME[name].levels
    }
    masked = all(len(block.masks.mask_digest) for block in kept)
    blocks = [columns_of(block) for block in kept]
    for name in columns.keys() - stated.keys() - set(() if masked else MASKS):
        parts = [block[name] for block in blocks if name in block and len(block[name])]
        if parts:
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Trace(header=header, **columns)


def _stated(records: list[StepRecord]) -> dict[str, Sequence[float]]:
    examined = [node for record in records for node in record.verdict.examined]
    emitted = [token for record in records for token in record.verdict.emitted]
    return {
        "position": [record.position for record in records],
        "n_drafted": [len(record.proposal.tree) for record in records],
        "n_examined": [len(record.verdict.examined) for record in records],
        "n_emitted": [len(record.verdict.emitted) for record in records],
        "q_kind": [record.proposal.q_kind for record in records],
        "residual_mass": [record.verdict.residual_mass for record in records],
        "draft_us": [min(record.timing.draft_us, LONGEST_US) for record in records],
        "verify_us": [min(record.timing.verify_us, LONGEST_US) for record in records],
        "batch": [record.timing.batch for record in records],
        "draft_version": _version_numbers([record.proposal.version for record in records]),
        "node_token": [token for record in records for token in record.proposal.tree.tokens],
        "node_parent": [parent for record in records for parent in record.proposal.tree.parents],
        "node_uniform": [number for record in records for number in _draft_uniforms(record)],
        "examined_node": [node.node for node in examined],
        "examined_p": [node.p for node in examined],
        "examined_q": [node.q for node in examined],
        "examined_uniform": [node.uniform for node in examined],
        "examined_accepted": [node.accepted for node in examined],
        "token": [token.token for token in emitted],
        "role": [token.role for token in emitted],
        "row": [token.row for token in emitted],
        "p": [token.p for token in emitted],
        "uniform": [token.uniform for token in emitted],
    }


def _version_numbers(versions: list[DraftVersion | None]) -> list[int]:
    """[S] -1 for a step without a version; empty if no step has one."""
    said = any(version is not None for version in versions)
    return [-1 if version is None else version.number for version in versions if said]


def _draft_uniforms(record: StepRecord) -> Sequence[float]:
    numbers = record.proposal.uniforms
    return [NAN] * len(record.proposal.tree) if numbers is None else numbers.tolist()
