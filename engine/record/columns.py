"""The one table of a trace's columns, and the test of whether columns fit together.

Every list of columns derives from `TABLE`: the empty columns of a trace, what a level holds, what a commitment covers,
how traces are joined. Readers index one column by another, so writers refuse columns with a fault, and `decode` too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, TypeAlias
from typing import Protocol as TypeProtocol

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Protocol, QKind, RecordLevel, Role
from engine.record.facts import facts_fault

TOP: Final = 20
"""Largest scores that level `topk` keeps of a row, and likeliest tokens of p and of q."""
Trace: TypeAlias = Any
TraceHeader: TypeAlias = Any
"""Both are of `engine.record.trace`, which imports this table."""
Values = NDArray[Any]
Counts = NDArray[np.integer[Any]]


class Per(Enum):
    """The thing that each entry of a column is about."""

    STEP = auto()
    NODE = auto()
    """A drafted node."""
    EXAMINED = auto()
    """An examined node."""
    EMITTED = auto()
    """An emitted token."""
    SPARE = auto()
    """A row that a decision on a draft as a whole read beside those of emitted tokens."""
    KEPT = auto()
    """An emitted token whose row is kept."""
    KEPT_NODE = auto()
    """An examined node whose row of q is kept."""
    KEPT_MASS = auto()
    """A token with mass in such a row."""


class Width(Enum):
    """The length of an entry."""

    ONE = auto()
    """The entry is a number."""
    PAIR = auto()
    TOP = auto()
    CELLS = auto()
    ROW = auto()
    """A number per token of the vocabulary."""
    BITS = auto()
    """A bit per token of the vocabulary."""


ALL: Final = frozenset(RecordLevel)
SCALARS: Final = ALL - {RecordLevel.TOKENS}
TOPK: Final = frozenset((RecordLevel.TOPK,))
FULL: Final = frozenset((RecordLevel.FULL,))
FLOATS: Final = ("f2", "f4", "f8")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a trace.

    per, dtype, width: what an entry is about, the type of its numbers (of whole rows also another float type), and
        how many it has.
    levels: the record levels that hold the column.
    optional: the levels at which it may be empty although there are entries.
    beside: the optional column that it accompanies: both are empty, or none.
    keyed: whether it may be left out, because the header says the keys of its random numbers.
    source: the column of drafted tokens that holds the values of accepted ones.
    committed: whether the choice of kept rows depends on it, in the table's order.
    """

    name: str
    per: Per
    dtype: str
    width: Width = Width.ONE
    levels: frozenset[RecordLevel] = ALL
    optional: frozenset[RecordLevel] = frozenset()
    beside: str = ""
    keyed: bool = False
    source: str = ""
    committed: bool = False


def _committed(name: str, per: Per, dtype: str, width: Width = Width.ONE, **more: Any) -> Column:
    return Column(name, per, dtype, width, committed=True, **more)


TABLE: Final = (
    _committed("position", Per.STEP, "i4"),
    _committed("n_drafted", Per.STEP, "i2"),
    _committed("n_examined", Per.STEP, "i2"),
    _committed("n_emitted", Per.STEP, "i2"),
    _committed("q_kind", Per.STEP, "u1"),
    _committed("residual_mass", Per.STEP, "f8", levels=SCALARS),
    Column("draft_us", Per.STEP, "i4"),
    Column("verify_us", Per.STEP, "i4"),
    Column("batch", Per.STEP, "i2"),
    Column("draft_version", Per.STEP, "i4", optional=ALL),
    _committed("node_token", Per.NODE, "u4"),
    _committed("node_parent", Per.NODE, "i2"),
    _committed("node_uniform", Per.NODE, "f8", levels=SCALARS, keyed=True),
    _committed("examined_node", Per.EXAMINED, "i2"),
    _committed("examined_p", Per.EXAMINED, "f8", levels=SCALARS),
    _committed("examined_q", Per.EXAMINED, "f8", levels=SCALARS),
    _committed("examined_uniform", Per.EXAMINED, "f8", levels=SCALARS, keyed=True),
    _committed("examined_accepted", Per.EXAMINED, "u1"),
    _committed("q_below", Per.EXAMINED, "f8", levels=TOPK),
    _committed("q_own", Per.EXAMINED, "f8", levels=TOPK),
    _committed("q_sum", Per.EXAMINED, "f8", levels=TOPK),
    Column("q_rows", Per.EXAMINED, "f8", Width.ROW, FULL),
    Column("draft_best_id", Per.EXAMINED, "u4", Width.PAIR, TOPK, optional=TOPK),
    Column("draft_best_score", Per.EXAMINED, "f8", Width.PAIR, TOPK, beside="draft_best_id"),
    _committed("token", Per.EMITTED, "u4", source="node_token"),
    _committed("role", Per.EMITTED, "u1"),
    _committed("row", Per.EMITTED, "i2"),
    _committed("p", Per.EMITTED, "f8", levels=SCALARS, source="examined_p"),
    _committed("uniform", Per.EMITTED, "f8", levels=SCALARS, keyed=True),
    _committed("logprob", Per.EMITTED, "f8", optional=ALL - SCALARS),
    _committed("margin", Per.EMITTED, "f8", optional=ALL - SCALARS),
    _committed("logits_digest", Per.EMITTED, "u8", levels=SCALARS),
    _committed("top_id", Per.EMITTED, "u4", Width.TOP, levels=TOPK),
    _committed("top_score", Per.EMITTED, "f8", Width.TOP, levels=TOPK),
    _committed("top_lse", Per.EMITTED, "f8", levels=TOPK),
    _committed("cell_id", Per.EMITTED, "u4", Width.CELLS, levels=TOPK),
    _committed("cell_p", Per.EMITTED, "f4", Width.CELLS, levels=TOPK),
    _committed("cell_q", Per.EMITTED, "f4", Width.CELLS, levels=TOPK),
    _committed("tail", Per.EMITTED, "f8", Width.PAIR, levels=TOPK),
    _committed("row_p", Per.EMITTED, "f8", levels=TOPK),
    _committed("p_below", Per.EMITTED, "f8", levels=TOPK),
    _committed("q_token", Per.EMITTED, "f8", levels=TOPK),
    _committed("residual_below", Per.EMITTED, "f8", levels=TOPK),
    _committed("residual_sum", Per.EMITTED, "f8", levels=TOPK),
    _committed("product", Per.EMITTED, "f8", levels=TOPK),
    Column("logits", Per.EMITTED, "f4", Width.ROW, FULL),
    Column("best_id", Per.EMITTED, "u4", Width.PAIR, TOPK, optional=TOPK),
    Column("best_score", Per.EMITTED, "f8", Width.PAIR, TOPK, beside="best_id"),
    Column("mask_digest", Per.EMITTED, "u8", optional=ALL),
    Column("mask_count", Per.EMITTED, "i4", beside="mask_digest"),
    Column("mask_bits", Per.EMITTED, "u1", Width.BITS, FULL, beside="mask_digest"),
    Column("spare_logits", Per.SPARE, "f4", Width.ROW, FULL),
    Column("spare_mask_bits", Per.SPARE, "u1", Width.BITS, FULL, beside="mask_digest"),
    Column("kept_at", Per.KEPT, "u4", levels=TOPK),
    Column("kept_logits", Per.KEPT, "f4", Width.ROW, TOPK),
    Column("kept_mask_bits", Per.KEPT, "u1", Width.BITS, TOPK, beside="mask_digest"),
    Column("kept_examined", Per.KEPT_NODE, "u4", levels=TOPK),
    Column("kept_q_count", Per.KEPT_NODE, "u4", levels=TOPK),
    Column("kept_q_id", Per.KEPT_MASS, "u4", levels=TOPK),
    Column("kept_q", Per.KEPT_MASS, "f8", levels=TOPK),
)
"""All columns of a trace."""
BY_NAME: Final[Mapping[str, Column]] = {column.name: column for column in TABLE}
COLUMNS: Final = tuple(BY_NAME)
KEPT: Final = tuple(name for name in COLUMNS if name.startswith("kept_"))
"""Columns of whole rows chosen afterwards (`engine.record.rows.kept_rows`)."""
MASKS: Final = tuple(name for name, column in BY_NAME.items() if "mask" in name and column.per is not Per.KEPT)
"""Columns of a grammar's masks; empty without a grammar."""
COMMITTED: Final = tuple(column for column in TABLE if column.committed)
KEYED: Final = tuple(column.name for column in TABLE if column.keyed)
"""Columns that may be left out, because the header says the keys of their random numbers."""
SOURCES: Final[Mapping[str, str]] = {column.name: column.source for column in TABLE if column.source}
"""Columns of emitted tokens, and those of drafted ones that hold the values of accepted tokens."""
WHOLE_ROWS: Final = tuple(column.name for column in TABLE if column.width in (Width.ROW, Width.BITS))
"""Columns of rows over the vocabulary."""
COUNTED: Final[Mapping[Per, str]] = {Per.NODE: "n_drafted", Per.EXAMINED: "n_examined", Per.EMITTED: "n_emitted"}
"""The column that says how many entries each step has."""


def entries_before(counts: Counts) -> NDArray[np.int64]:
    """[S] the entries of all earlier steps, which is also the place of a step's first entry."""
    return np.asarray(np.cumsum(counts, dtype=np.int64) - counts)


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """[n] the step of each entry of a counted column of `counts` [S]."""

    counts: Counts
    step: NDArray[np.int64]

    @property
    def local(self) -> NDArray[np.int64]:
        """[n] the entry's number within its step."""
        return np.arange(len(self.step)) - entries_before(self.counts)[self.step]


def numbered(counts: Counts) -> EntryIndex:
    """Number the entries of `counts` [S], all 0 or more."""
    return EntryIndex(counts, np.repeat(np.arange(len(counts)), counts))


def examined_nodes(trace: Trace) -> NDArray[np.int64]:
    """[X] index of each examined node among the trace's drafted nodes."""
    return np.asarray(entries_before(trace.n_drafted)[numbered(trace.n_examined).step] + trace.examined_node)


class Layout(TypeProtocol):
    """The type and the shape of a column, as an array states them."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its entries, and the length of each."""


@dataclass(frozen=True, slots=True)
class HeldColumns:
    """The columns of a record as its bytes hold them.

    columns: those that were read.
    layouts: of all that are there; the others are empty.
    short: columns that lack the values of accepted tokens.
    keyed: columns that are left out, because keys give them.
    """

    header: TraceHeader
    columns: Mapping[str, Values]
    layouts: Mapping[str, Layout]
    short: tuple[str, ...] = ()
    keyed: tuple[str, ...] = ()


COUNTS: Final = frozenset((*COUNTED.values(), "role", "kept_q_count"))
"""The columns whose values say how long others are."""


def width_of(column: Column, vocabulary: int) -> tuple[int, ...]:
    """The shape of an entry."""
    return _widths(vocabulary)[column.name]


@lru_cache(maxsize=64)
def _widths(vocabulary: int) -> Mapping[str, tuple[int, ...]]:
    """The shape of an entry of each column; kept, because every reading of a trace asks for all."""
    extents = {
        Width.ONE: (),
        Width.PAIR: (2,),
        Width.TOP: (min(TOP, vocabulary),),
        Width.CELLS: (min(2 * TOP, vocabulary),),
        Width.ROW: (vocabulary,),
        Width.BITS: (-(-vocabulary // 8),),
    }
    return {column.name: extents[column.width] for column in TABLE}


def empty(vocabulary: int) -> dict[str, Values]:
    """All columns without entries."""
    return {column.name: np.empty((0, *width_of(column, vocabulary)), column.dtype) for column in TABLE}


def misfit(held: HeldColumns) -> str | None:
    """The first column whose type or length the header and the counts do not allow; None if they fit together.

    Args:
        held: columns, among which are those of `COUNTS` that have entries.
    """
    return next(_misfits(held), None)


def _misfits(held: HeldColumns) -> Iterator[str]:
    totals = _Totals(held)
    for column in TABLE:
        if column.name in held.keyed:
            continue
        given, expected = held.layouts.get(column.name), totals.entries(column)
        entries = given.shape[0] if given is not None and given.shape else 0
        if entries != expected and not (entries == 0 and held.header.level in column.optional):
            yield f"column {column.name} has {entries} entries instead of {expected}"
        if given is None:
            continue
        known = FLOATS if column.dtype == "f4" and column.width is Width.ROW else (column.dtype,)
        if given.dtype.newbyteorder("<").str[1:] not in known:
            yield f"column {column.name} holds {given.dtype} instead of {np.dtype(column.dtype)}"
        width = width_of(column, held.header.vocabulary)
        if entries and given.shape[1:] != width:
            yield f"column {column.name} has entries of shape {given.shape[1:]} instead of {width}"
        if column.name in COUNTED.values() and entries and int(held.columns[column.name].min()) < 0:
            yield f"column {column.name} holds a negative count"


@dataclass(frozen=True, slots=True)
class _Totals:
    """The entries that a record's columns must have; asked in the table's order, so that counts are known to fit."""

    held: HeldColumns

    def entries(self, column: Column) -> int:
        """Entries of a column whose level, group and counts are known."""
        if self.held.header.level not in column.levels or (column.beside and not self._length(column.beside)):
            return 0
        total = self._of(column.per)
        return total - self._accepted() if column.name in self.held.short else total

    def _of(self, per: Per) -> int:
        if per in COUNTED:
            return self._sum(COUNTED[per])
        if per is Per.SPARE:
            joint = self.held.header.protocol is Protocol.BLOCK
            return self._length("position") + self._sum("n_drafted") - self._sum("n_emitted") if joint else 0
        if per is Per.KEPT_MASS:
            return self._sum("kept_q_count")
        return self._length({Per.STEP: "position", Per.KEPT: "kept_at", Per.KEPT_NODE: "kept_examined"}[per])

    def _length(self, name: str) -> int:
        layout = self.held.layouts.get(name)
        return layout.shape[0] if layout is not None else 0

    def _sum(self, name: str) -> int:
        return int(self.held.columns[name].sum(dtype=np.int64)) if self._length(name) else 0

    def _accepted(self) -> int:
        return int(np.count_nonzero(self.held.columns["role"] == Role.ACCEPTED)) if self._length("role") else 0


def shape_fault(trace: Trace) -> str | None:
    """The first way in which a trace's columns contradict each other, so that a reader could not index them; or None.

    It does not judge the values; replay does.
    """
    columns = {name: getattr(trace, name) for name in COLUMNS}
    fault = misfit(HeldColumns(trace.header, columns, columns))
    return fault or place_fault(trace) or token_fault(trace)


def place_fault(trace: Trace) -> str | None:
    """The first role, kind of q, node or kept entry that does not exist, of columns that fit, or the first fact of
    another kind than readers expect; or None.
    """
    faults = (fault for rule in (_wrong_codes, _wrong_kept, _wrong_nodes) for fault in rule(trace))
    return facts_fault(trace.header.facts) or next(faults, None)


def _wrong_codes(trace: Trace) -> Iterator[str]:
    if len(trace.role) and int(trace.role.max()) > max(Role):
        yield f"column role holds {int(trace.role.max())}, which is no role"
    if len(trace.q_kind) and int(trace.q_kind.max()) > max(QKind):
        yield f"column q_kind holds {int(trace.q_kind.max())}, which is no kind of q"
    if len(trace.position) and int(trace.position.min()) < 0:
        yield f"column position holds {int(trace.position.min())}, which is before the first token"


def _wrong_kept(trace: Trace) -> Iterator[str]:
    limits = {"kept_at": trace.token, "kept_examined": trace.examined_node}
    for name, others in limits.items():
        yield from _too_large(name, getattr(trace, name), len(others))


def _too_large(name: str, column: Values, limit: int) -> Iterator[str]:
    if len(column) and int(column.max()) >= limit:
        yield f"column {name} holds {int(column.max())}, the limit is {limit}"


def _wrong_nodes(trace: Trace) -> Iterator[str]:
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


def token_fault(trace: Trace) -> str | None:
    """The first step without a token, or token outside the vocabulary, of columns that fit; or None."""
    return next(_wrong_tokens(trace), None)


def _wrong_tokens(trace: Trace) -> Iterator[str]:
    if np.any(trace.n_emitted < 1):
        yield f"step {int(np.argmax(trace.n_emitted < 1))} emitted no token"
    vocabulary = trace.header.vocabulary
    for name in ("token", "node_token"):
        column = getattr(trace, name)
        if len(column) and int(column.max()) >= vocabulary:
            yield f"column {name} holds token {int(column.max())}, the vocabulary has {vocabulary}"
    yield from _too_large("kept_q_id", trace.kept_q_id, vocabulary)
    if any(token < 0 or token >= vocabulary for token in trace.header.prompt) or not trace.header.prompt:
        yield "the prompt is empty or holds a token outside the vocabulary"
