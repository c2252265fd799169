"""Whole rows of a sample of tokens, chosen after the record of these tokens is fixed.

A request's tokens are divided into windows of whole steps. When a window is full, its columns are hashed together with
the hash of the window before, and this commitment chooses the tokens whose rows are kept. An engine has emitted all of
a window's tokens before anything about the choice is known, and a reader of the record repeats it. The share of kept
tokens depends on the vocabulary alone, so that the bytes per token stay bounded; so do the bytes of the rows that wait.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import depths
from engine.core.types import Floats, QKind, StepRecord
from engine.record.columns import COMMITTED, COUNTED, KEPT, Per, empty
from engine.record.mask_bits import packed

if TYPE_CHECKING:
    from engine.record.trace import Rows, Trace, TraceHeader

BYTES_PER_TOKEN: Final = 1280
"""Mean bytes of kept rows per emitted token, before compression, with one drawn draft per token."""
WINDOW_BYTES: Final = 2**25
"""Bytes of rows after which a window closes."""
PLACE_BYTES: Final = 16
"""Bytes per token of the vocabulary of one kept place: a float32 logit, an id and a float64 q."""
WAITING_BYTES: Final = 12
"""The same of one place that waits: it needs no ids. Part of the format, because it divides the windows."""


def share_of(vocabulary: int) -> float:
    """Probability that a token's rows are kept."""
    return min(1.0, BYTES_PER_TOKEN / (PLACE_BYTES * vocabulary))


def window_of(vocabulary: int) -> int:
    """Emitted tokens after which a window closes at the end of the step."""
    return max(1, WINDOW_BYTES // (WAITING_BYTES * vocabulary))


@dataclass(frozen=True, slots=True)
class Window:
    """Steps from `begin` to before `end`, whose emitted tokens begin at `first`."""

    begin: int
    end: int
    first: int


def windows(emitted: Sequence[int], size: int) -> Iterator[Window]:
    """The windows of a request, given the emitted tokens of each step."""
    if emitted and sum(emitted) < size:
        yield Window(0, len(emitted), 0)
        return
    begin, first, count = 0, 0, 0
    for step, tokens in enumerate(emitted):
        count += tokens
        if count >= size or step == len(emitted) - 1:
            yield Window(begin, step + 1, first)
            begin, first, count = step + 1, first + count, 0


def opening(header: TraceHeader) -> bytes:
    """The commitment before the first window."""
    text = f"{header.request}\n{header.stream}\n{header.sampling.seed}\n{header.vocabulary}\n{header.prompt}"
    return hashlib.sha256(text.encode()).digest()


def commitment(before: bytes, columns: Mapping[str, NDArray[Any]]) -> bytes:
    """SHA-256 over the commitment before and the window's columns, little-endian, in the order of the table."""
    joined = hashlib.sha256(before)
    for column in COMMITTED:
        values = np.ascontiguousarray(columns[column.name])
        joined.update(f"{column.name} {values.dtype.str[1:]} {values.shape}\n".encode())
        joined.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
    return joined.digest()


def committed(trace: Trace, window: Window) -> dict[str, NDArray[Any]]:
    """The window's part of the columns under the commitment."""
    slices = {Per.STEP: slice(window.begin, window.end)}
    for per, counts in COUNTED.items():
        ends = np.cumsum(getattr(trace, counts), dtype=np.int64)
        slices[per] = slice(int(ends[window.begin - 1]) if window.begin else 0, int(ends[window.end - 1]))
    return {column.name: getattr(trace, column.name)[slices[column.per]] for column in COMMITTED}


def chosen(commitment: bytes, tokens: int, share: float) -> list[int]:
    """The tokens of a window that a commitment chooses: each on its own, with probability `share`.

    Token i is chosen if the first 8 bytes of SHA-256 of the commitment and i, as a share of 2^64, are below `share`.
    """
    limit = math.ceil(share * 2**64)
    if limit >= 2**64:
        return list(range(tokens))
    # bytes compare as numbers do, and a digest that begins with `least` is longer, hence above it
    least, begun, result = limit.to_bytes(8, "big"), hashlib.sha256(commitment), list[int]()
    for i, place in zip(range(tokens), _numbers(tokens.bit_length()), strict=False):
        # a copy takes half the time of a hash that begins anew
        joined = begun.copy()
        joined.update(place)
        if joined.digest() < least:
            result.append(i)
    return result


@cache
def _numbers(bits: int) -> tuple[bytes, ...]:
    """The numbers of so many bits, 8 bytes each."""
    return tuple(i.to_bytes(8, "big") for i in range(2**bits))


def choices(trace: Trace) -> list[int]:
    """The emitted tokens of a trace whose rows its commitments choose, in order."""
    before, result = opening(trace.header), list[int]()
    for window in windows(trace.n_emitted.tolist(), window_of(trace.header.vocabulary)):
        before = commitment(before, committed(trace, window))
        tokens = int(trace.n_emitted[window.begin : window.end].sum())
        result += [window.first + i for i in chosen(before, tokens, trace.header.kept_share)]
    return result


def dense_laws(trace: Trace) -> Floats:
    """[H, V] the kept rows of q of a well-formed trace, in the order of `kept_examined`."""
    rows, vocabulary = len(trace.kept_examined), trace.header.vocabulary
    if len(trace.kept_q) == rows * vocabulary:
        ids = trace.kept_q_id.reshape(rows, vocabulary)
        if (trace.kept_q_count == vocabulary).all() and (ids == np.arange(vocabulary)).all():
            return trace.kept_q.reshape(rows, vocabulary)
    q = np.zeros((rows, vocabulary))
    q[np.repeat(np.arange(rows), trace.kept_q_count), trace.kept_q_id] = trace.kept_q
    return q


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The columns of kept rows, named as in the trace."""

    kept_at: NDArray[np.uint32]
    kept_logits: Rows
    kept_mask_bits: NDArray[np.uint8]
    kept_examined: NDArray[np.uint32]
    kept_q_count: NDArray[np.uint32]
    kept_q_id: NDArray[np.uint32]
    kept_q: Floats


NO_ROWS: Final = KeptRows(**{name: column for name, column in empty(0).items() if name in KEPT})


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an emitted token: its row in the step, and the examined nodes there with their rows of q."""

    record: StepRecord
    local: int
    at: int
    examined: tuple[int, ...]
    """Numbers of the examined nodes within the step."""
    first: int
    """Number of the step's first examined node in the request."""


def kept_rows(records: Sequence[StepRecord], picked: Sequence[int], emitted: int, examined: int) -> KeptRows:
    """The rows of a window's chosen tokens.

    Args:
        records: the window's steps with their rows.
        picked: tokens within the window, ascending.
        emitted: tokens of the request before the window.
        examined: examined nodes of the request before the window.
    """
    wanted = {emitted + token for token in picked}
    places = [place for place in _places(records, emitted, examined) if place.at in wanted]
    if not places:
        return NO_ROWS
    masks = [place.record.allowed[place.local] for place in places if place.record.allowed is not None]
    laws = [(place.first + x, _law(place.record, x)) for place in places for x in place.examined]
    support = [np.flatnonzero(law) for _, law in laws]
    return KeptRows(
        kept_at=np.array([place.at for place in places], np.uint32),
        kept_logits=np.stack([place.record.logits[place.local] for place in places]),
        kept_mask_bits=packed(np.stack(masks)) if masks else NO_ROWS.kept_mask_bits,
        kept_examined=np.array([x for x, _ in laws], np.uint32),
        kept_q_count=np.array([len(ids) for ids in support], np.uint32),
        kept_q_id=np.concatenate([NO_ROWS.kept_q_id, *support]).astype(np.uint32),
        kept_q=np.concatenate([NO_ROWS.kept_q, *(law[ids] for (_, law), ids in zip(laws, support, strict=True))]),
    )


def _law(record: StepRecord, x: int) -> Floats:
    assert record.proposal.q is not None
    return np.asarray(record.proposal.q[record.verdict.examined[x].node])


def _places(records: Sequence[StepRecord], emitted: int, examined: int) -> Iterator[_Place]:
    for record in records:
        depth = depths(record.proposal.tree)
        drawn = record.proposal.q_kind is QKind.FULL and record.proposal.q is not None
        nodes = [depth[item.node] - 1 for item in record.verdict.examined] if drawn else []
        for local in range(len(record.verdict.emitted)):
            here = tuple(x for x, place in enumerate(nodes) if place == local)
            yield _Place(record, local, emitted + local, here, examined)
        emitted += len(record.verdict.emitted)
        examined += len(record.verdict.examined)


@dataclass(slots=True)
class RowKeeper:
    """Holds the rows of a request's open window, and keeps those that the window's commitment chooses."""

    header: TraceHeader
    kept: list[KeptRows] = field(default_factory=list)
    _open: list[StepRecord] = field(default_factory=list)
    _commitment: bytes = b""
    _waiting: int = 0
    _emitted: int = 0
    _examined: int = 0

    def step(self, record: StepRecord) -> None:
        """Hold the rows of one step."""
        self._open.append(record)
        self._waiting += len(record.verdict.emitted)

    @property
    def full(self) -> bool:
        """True if the open window must be closed before the next step."""
        return self._waiting >= window_of(self.header.vocabulary)

    def close(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Commit to the window's columns, keep the chosen rows and release the others."""
        if not self._open:
            return
        self._commitment = commitment(self._commitment or opening(self.header), columns)
        picked = chosen(self._commitment, self._waiting, share_of(self.header.vocabulary))
        self.kept.append(kept_rows(self._open, picked, self._emitted, self._examined))
        self._emitted += self._waiting
        self._examined += sum(len(record.verdict.examined) for record in self._open)
        self._open, self._waiting = [], 0

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of all kept rows; none without any."""
        some = [rows for rows in self.kept if len(rows.kept_at)]
        return {name: np.concatenate([getattr(rows, name) for rows in some]) for name in KEPT if some}
