"""Append to the store's log: an RFC 6962 Merkle tree over every row that carries evidence, in the order of writing.

A session notes the rows that it inserts, and `seal` appends their entries in the same transaction. Each entry keeps the
root of the largest perfect subtree that it completes, so an append reads log2(n) rows.

A process that writes past `LoggedSession` logs nothing; `audit.store.health` names its rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import event, func, insert, inspect, select
from sqlalchemy.orm import Session

from audit.store.base.merkle import leaf_hash, merkle_root, node_hash
from audit.store.base.run_lock import lock_appending
from audit.store.ledger import entries
from audit.store.ledger.coverage import COVERED
from audit.store.ledger.entries import KINDS, STATE, RowEntry
from audit.store.tables.log import LogEntryRow
from audit.store.tables.runs import Base, RunRow

PENDING: Final = "audit.store.ledger.log"
OWN_TEXT: Final = (STATE,)
"""Kinds whose entries hold the bytes that they hash."""
LOCK: Final = 0x5AC0DE10
"""PostgreSQL's advisory lock of those who append."""


class LoggedSession(Session):
    """A session that notes the mapped rows that it writes, for `seal`."""


def _collect(session: Session, _context: object) -> None:
    for row in session.new:
        if isinstance(row, Base) and row.__tablename__ in COVERED:
            note(session, row.__tablename__, [inspect(type(row)).primary_key_from_instance(row)])
    for row in (*session.new, *session.dirty):
        if isinstance(row, RunRow):
            note(session, STATE, [(row.id,)])


event.listen(LoggedSession, "after_flush", _collect)


def note(session: Session, kind: str, keys: Iterable[Sequence[Any]]) -> None:
    """Note rows by their primary keys, which were written without the mapped class."""
    noted: dict[str, dict[str, Any]] = session.info.setdefault(PENDING, {})
    for key in keys:
        noted.setdefault(kind, {})[entries.ref_of(key)] = key[0]


def insert_rows(session: Session, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of a table without the mapped class, in one statement, and note those that the log covers."""
    if not rows:
        return
    session.execute(insert(Base.metadata.tables[table]), rows)
    if table in COVERED:
        keys = [column.name for column in Base.metadata.tables[table].primary_key]
        note(session, table, [[row[name] for name in keys] for row in rows])


def seal(session: Session) -> None:
    """Append an entry for each row noted in this transaction."""
    session.flush()
    noted: dict[str, dict[str, Any]] = session.info.pop(PENDING, {})
    if noted:
        append(session, list(_noted(session, noted)))


def _noted(session: Session, noted: Mapping[str, Mapping[str, Any]]) -> Iterator[RowEntry]:
    for kind in KINDS:
        keys = noted.get(kind, {})
        rows = entries.rows(session, kind, set(keys.values())) if keys else ()
        yield from (row for row in rows if row.ref in keys)


def append(session: Session, new: Sequence[RowEntry]) -> None:
    """Append entries; waits for other writers, who append in turn."""
    if session.get_bind().dialect.name == "postgresql":
        lock_appending(session, LOCK)
    size = size_of(session)
    frontier = frontier_of(session, size)
    values = []
    for seq, entry in enumerate(new, start=size):
        leaf = leaf_hash(entry.data)
        node = grown(frontier, seq, leaf)
        kept = entry.data.decode("ascii") if entry.kind in OWN_TEXT else None
        values.append({"seq": seq, "kind": entry.kind, "ref": entry.ref, "text": kept, "leaf": leaf, "node": node})
    if values:
        session.execute(insert(LogEntryRow), values)


def size_of(session: Session) -> int:
    """The number of entries."""
    return int(session.execute(select(func.coalesce(func.max(LogEntryRow.seq), -1))).scalar_one()) + 1


def last_state(session: Session, run_id: int) -> int | None:
    """The place of a run's last entry of kind `state`."""
    query = select(func.max(LogEntryRow.seq)).where(LogEntryRow.kind == STATE, LogEntryRow.ref == str(run_id))
    return session.execute(query).scalar_one_or_none()


def frontier_of(session: Session, size: int) -> list[bytes]:
    """Roots of the perfect subtrees that the first `size` entries split into, largest first."""
    ends = subtree_ends(size)
    query = select(LogEntryRow.seq, LogEntryRow.node).where(LogEntryRow.seq.in_(ends))
    result = {row.seq: bytes(row.node) for row in session.execute(query)}
    return [result[end] for end in ends]


def subtree_ends(size: int) -> list[int]:
    """The last entry of each perfect subtree that the first `size` entries split into, largest first."""
    ends, begin = [], 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            begin += 1 << level
            ends.append(begin - 1)
    return ends


def grown(frontier: list[bytes], seq: int, leaf: bytes) -> bytes:
    """Add entry `seq` to a frontier; returns the root of the largest perfect subtree that it completes."""
    node = leaf
    while seq & 1:
        node = node_hash(frontier.pop(), node)
        seq >>= 1
    frontier.append(node)
    return node


def root_of(frontier: Sequence[bytes]) -> bytes:
    """The tree's root; without entries SHA-256 of nothing."""
    if not frontier:
        return merkle_root([])
    root = frontier[-1]
    for node in reversed(frontier[:-1]):
        root = node_hash(node, root)
    return root


def log_all(session: Session) -> None:
    """Log every row of a store that was filled without a log."""
    append(session, [row for kind in KINDS for row in entries.rows(session, kind)])
