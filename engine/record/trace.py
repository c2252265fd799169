"""The record of one request as columns, and its bytes.

A trace holds the decisions of each step and the numbers behind them, so that a reader can recompute them without the
models. Columns are concatenated over steps; the per-step counts say where a step begins. Bytes are a zstd-compressed
directory of columns with their values (`engine.record.container`), behind a magic number. `engine.record.columns` is
the table of the columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import TraceError
from engine.core.types import FinishReason, Floats, Mask, Protocol, QKind, RecordLevel, Role, SamplingParams, Tree
from engine.core.versions import DraftVersion
from engine.record import shared_columns
from engine.record.columns import COLUMNS, COUNTS, KEYED, SOURCES, WHOLE_ROWS, HeldColumns, empty, misfit
from engine.record.container import pack, unpack
from engine.record.envelope import Opened, damage_named, opened, wrap
from engine.record.keyed import numbers_of, without_keyed
from engine.record.mask_bits import unpacked
from engine.record.requests import sampling_from_json

STOP_BEGINS: Final = "stop_begins"
"""Fact of a request that a stop string ended: index of the emitted token in which the string begins."""
PARTED: Final = "parted"
"""Fact of a request drafted again: [step, node, lead] of every choice that is not the recorded one, with null for an
infinite lead (`engine.decode.redraws`). Left out if there are none.
"""
Ints = NDArray[np.integer[Any]]
Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The facts that a reader needs to interpret the columns."""

    request: str
    level: RecordLevel
    protocol: Protocol
    lossless: bool
    proposer: str
    vocabulary: int
    stream: int
    sampling: SamplingParams
    eos_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt: tuple[int, ...]
    coupled_draft: bool = False
    """The draft used the target's own noise (shared-randomness drafting)."""
    draft_versions: tuple[DraftVersion, ...] = ()
    """The versions that `draft_version` refers to, in order; empty for a draft that does not learn."""
    kept_share: float = 0.0
    """Probability with which a token's whole rows are kept (`rows.kept_rows`); 0 if nothing chooses any."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts from the backend about this request (`engine.backends.interface.Engine.generate`), as JSON values.
    """

    @property
    def repeats(self) -> bool:
        """True if the tokens depend on the target and the seed only: at temperature 0, or by shared numbers."""
        return self.sampling.greedy or self.protocol is Protocol.GUMBEL


@dataclass(frozen=True, slots=True)
class Trace:
    """One request's record: S steps, N drafted nodes, X examined nodes, E emitted tokens.

    Columns absent at a level have length 0. `top_*` and the columns of cells exist
    at `topk` only, `logits` and `q_rows` at `full` only. Cells: see `engine.record.rows.lumping`.
    """

    header: TraceHeader
    position: Ints
    """[S] absolute position of the first token that the step emits."""
    n_drafted: Ints
    n_examined: Ints
    n_emitted: Ints
    q_kind: Ints
    residual_mass: Floats
    """[S] mass of max(p - q, 0) at the rejection; NaN without one."""
    draft_us: Ints
    verify_us: Ints
    batch: Ints
    draft_version: Ints
    """[S] number of the version that drafted, -1 for a step without one; empty if no step has one."""
    node_token: Ints
    node_parent: Ints
    """[N] index of the parent within the step's tree, -1 for the root."""
    node_uniform: Floats
    """[N] the number that drew the token; NaN if none did."""
    examined_node: Ints
    """[X] index of the node within the step's tree."""
    examined_p: Floats
    examined_q: Floats
    examined_uniform: Floats
    examined_accepted: Ints
    token: Ints
    role: Ints
    row: Ints
    """[E] the p row of the step's tree that decided the token: 0 root, i + 1 node i."""
    p: Floats
    uniform: Floats
    logprob: Floats
    """[E] log softmax of the raw logits at temperature 1."""
    margin: Floats
    """[E] largest minus second largest score of the deciding row."""
    logits_digest: NDArray[np.uint64]
    """[E] digest of the deciding row as the target gave it (see `engine.record.rows.row_digests`)."""
    top_id: Ints
    """[E, K] tokens with the largest scores, descending."""
    top_score: Floats
    top_lse: Floats
    """[E] logsumexp of scores / temperature (temperature 1 if greedy)."""
    logits: Rows
    """[E, V] the deciding rows as the target gave them."""
    spare_logits: Rows
    """[R, V] the other rows of decisions on a draft as a whole, at `full` (block rule): of a step with n drafted and
    e emitted tokens the rows of nodes e to n, in order."""
    q_rows: Floats
    """[X, V] the distribution that each examined node was drawn from."""
    cell_id: Ints
    """[E, C] the K likeliest tokens of p, descending, then those of q that p lacks; `rows.lumping.PAD`."""
    cell_p: Rows
    cell_q: Rows
    """[E, C] q of the place; NaN where nothing was drafted or its law is not known, as in the next columns of q."""
    tail: Floats
    """[E, 2] mass of p and of q outside the cells."""
    row_p: Floats
    """[E] p of the token by the deciding row."""
    p_below: Floats
    """[E] mass of p before the token in id order."""
    q_token: Floats
    """[E] q of the token."""
    residual_below: Floats
    """[E] mass of max(p - q, 0) before the token in id order."""
    residual_sum: Floats
    """[E] mass of max(p - q, 0), wherever q is known."""
    product: Floats
    """[E] sum of p q."""
    q_below: Floats
    """[X] mass of q before the drafted token in id order; NaN if it was not drawn from a row."""
    q_own: Floats
    """[X] q of the drafted token by the row it was drawn from, NaN as in `q_below`."""
    q_sum: Floats
    """[X] mass of that row."""
    best_id: Ints
    """[E, 2] the tokens with the largest and the second largest log p plus noise, under the Gumbel rule."""
    best_score: Floats
    """[E, 2] their log p plus noise."""
    draft_best_id: Ints
    """[X, 2] the same of q, where the draft used the target's noise."""
    draft_best_score: Floats
    mask_digest: NDArray[np.uint64]
    """[E] digest of the packed bits of the grammar's mask on the deciding row, at every level."""
    mask_count: Ints
    """[E] number of tokens that the mask allows."""
    mask_bits: NDArray[np.uint8]
    """[E, ceil(V / 8)] the masks, least significant bit first, at `full`."""
    spare_mask_bits: NDArray[np.uint8]
    """[R, ceil(V / 8)] those on the rows of `spare_logits`."""
    kept_at: Ints
    """[K] the emitted tokens whose rows are kept, chosen afterwards (`engine.record.rows.kept_rows`)."""
    kept_logits: Rows
    """[K, V] their deciding rows as the target gave them."""
    kept_mask_bits: NDArray[np.uint8]
    """[K, ceil(V / 8)] the grammar's masks on these rows."""
    kept_examined: Ints
    """[H] the examined nodes at the places of these tokens that were drawn from a row of q."""
    kept_q_count: Ints
    """[H] tokens of each such row that have mass."""
    kept_q_id: Ints
    """[M] these tokens, row by row."""
    kept_q: Floats
    """[M] q of them."""

    @property
    def steps(self) -> int:
        """Number of steps, that is of target forwards after the prompt."""
        return len(self.position)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The generated tokens."""
        return tuple(self.token.tolist())

    @property
    def n_accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return int(np.sum(self.role == Role.ACCEPTED))

    def allowed(self, index: int) -> Mask | None:
        """[V] the grammar's mask on the row that decided an emitted token; None without masks on record."""
        return unpacked(self.mask_bits[index], self.header.vocabulary) if len(self.mask_bits) else None


STORED: Final = frozenset(COLUMNS) - frozenset(KEYED)
"""The columns that no key gives."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a trace; slices, not copies."""

    trace: Trace
    index: int
    nodes: slice
    examined: slice
    emitted: slice

    @property
    def position(self) -> int:
        """Absolute position of the first emitted token."""
        return int(self.trace.position[self.index])

    @property
    def q_kind(self) -> QKind:
        """The way in which the step's drafted tokens were chosen."""
        return QKind(int(self.trace.q_kind[self.index]))

    @property
    def tree(self) -> Tree:
        """The step's draft."""
        columns = (self.trace.node_token, self.trace.node_parent)
        return Tree(*(tuple(column[self.nodes].tolist()) for column in columns))


def steps_of(trace: Trace, only: Iterable[int] | None = None) -> Iterator[StepView]:
    """The steps in order; or the given ones."""
    wanted = list(range(trace.steps) if only is None else only)
    if not wanted:
        return
    nodes, examined, emitted = (
        [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        for counts in (trace.n_drafted, trace.n_examined, trace.n_emitted)
    )
    for i in wanted:
        cuts = (slice(ends[i], ends[i + 1]) for ends in (nodes, examined, emitted))
        yield StepView(trace, i, *cuts)


def encode(trace: Trace) -> bytes:
    """The trace's bytes; equal traces give equal bytes."""
    columns = {name: getattr(trace, name) for name in COLUMNS}
    header = trace.header
    keyed = without_keyed(columns, header.sampling.seed, header.stream, header.protocol)
    short = shared_columns.shortened(columns)
    document = {"header": header_document(header), "keyed": list(keyed), "once": list(short)}
    stored = {name: short.get(name, column) for name, column in columns.items() if len(column) and name not in keyed}
    return wrap(pack(document, stored, WHOLE_ROWS))


def decode(data: bytes) -> Trace:
    """Read the bytes that `encode` wrote.

    Raises:
        TraceError: the bytes are not a trace, are damaged, or hold columns that do not fit together.
    """
    return decoded(opened(data))


def decoded(bare: Opened, *, only: Collection[str] | None = None) -> Trace:
    """The trace of a decompressed content, whose columns fit together.

    Args:
        bare: the content.
        only: the columns that the caller reads, where reading fewer saves time; others may be empty.

    Raises:
        TraceError: the content is damaged, or its columns do not fit together.
    """
    read = fitting(bare, None if only is None else shared_columns.NEEDED.union(only))
    header, columns = read.header, empty(read.header.vocabulary) | dict(read.columns)
    with damage_named():
        columns |= shared_columns.restored(read.short, columns)
        if only is None:
            columns |= numbers_of(read.keyed, columns, header.sampling.seed, header.stream, header.protocol)
        return Trace(header=header, **columns)


def fitting(bare: Opened, only: Collection[str] | None) -> HeldColumns:
    """The columns of a content as it holds them, which fit together; raises as `decoded`."""
    read = held(bare, None if only is None else COUNTS.union(only))
    with damage_named():
        fault = misfit(read)
    if fault is not None:
        raise TraceError(f"damaged trace: {fault}")
    return read


def held(bare: Opened, only: Collection[str] | None) -> HeldColumns:
    """The columns of a content as it holds them, whether they fit together or not.

    Raises:
        TraceError: the content is damaged.
    """
    with damage_named():
        content = unpack(bare.content, only)
        header = header_of_document(content.document.pop("header"))
        keyed, short = content.document.pop("keyed"), content.document.pop("once")
        known = set(keyed) <= set(KEYED) and set(short) <= set(SOURCES) and set(content.layouts) <= set(COLUMNS)
        if content.document or not known or set(keyed) & set(content.layouts):
            raise ValueError("the directory holds entries that it should not")
    return HeldColumns(header, content.columns, content.layouts, tuple(short), tuple(keyed))


def header_document(header: TraceHeader) -> dict[str, Any]:
    """The header as JSON values."""
    written = dataclasses.asdict(header) | {"stream": str(header.stream), "sampling": header.sampling.document()}
    absent = {"kept_share": not header.kept_share, "facts": not header.facts}
    return {key: value for key, value in written.items() if not absent.get(key)}


STREAMS: Final = range(2**64)
_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("request", "proposer"), str),
    **dict.fromkeys(("lossless", "coupled_draft"), bool),
    "vocabulary": int,
    "kept_share": int | float,
    "facts": Mapping,
}


def header_of_document(data: dict[str, Any]) -> TraceHeader:
    """The header of a document, which it uses up; raises one of `envelope.DAMAGE` for another document."""
    stream = data.pop("stream")
    header = TraceHeader(
        level=RecordLevel(data.pop("level")),
        protocol=Protocol(data.pop("protocol")),
        stream=int(stream),
        sampling=sampling_from_json(data.pop("sampling")),
        eos_ids=tuple(map(index, data.pop("eos_ids"))),
        finish_reason=FinishReason(data.pop("finish_reason")),
        prompt=tuple(map(index, data.pop("prompt"))),
        draft_versions=tuple(DraftVersion(**version) for version in data.pop("draft_versions")),
        **data,
    )
    strange = [name for name, kind in _KINDS.items() if not isinstance(getattr(header, name), kind)]
    if strange or header.stream not in STREAMS or stream != str(header.stream) or not 0 <= header.kept_share <= 1:
        raise ValueError(f"the header's {', '.join(strange) or 'stream or kept_share'} is of another kind")
    return header


class _LazyTrace(Trace):
    """A trace whose columns are decoded at the first access; until then their slots are empty."""

    __slots__ = ("_payload",)
    _payload: Callable[[], bytes]

    def __getattr__(self, name: str) -> Any:
        """Called for empty slots only."""
        if name not in COLUMNS:
            raise AttributeError(name)
        whole = decode(self._payload())
        for column in COLUMNS:
            object.__setattr__(self, column, getattr(whole, column))
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process holds the bytes, which take a third of the columns' memory."""
        return _lazy_of_bytes, (self.header, self._payload())


def lazy_trace(header: TraceHeader, payload: Callable[[], bytes]) -> Trace:
    """The trace of `payload`, which is read at the first access to a column; the header is available at once."""
    trace = object.__new__(_LazyTrace)
    object.__setattr__(trace, "header", header)
    object.__setattr__(trace, "_payload", payload)
    return trace


def _lazy_of_bytes(header: TraceHeader, payload: bytes) -> Trace:
    return lazy_trace(header, lambda: payload)
