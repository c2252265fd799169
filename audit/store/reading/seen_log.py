"""The log as a long-lived process saw it: it only grows, every entry had its row, and no decision's row goes."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.store.base.keys import PublicKey
from audit.store.base.merkle import leaf_hash
from audit.store.health import erased, log_damage
from audit.store.ledger import entries, log, log_scan, notes
from audit.store.ledger.notes import TreeHead
from audit.store.tables.log import CheckpointRow
from audit.store.tables.verdicts import GateDecisionRow

DECISION_KIND: Final = GateDecisionRow.__tablename__
NEW: Final = "SELECT kind, ref FROM log_entry WHERE seq >= {} ORDER BY seq"


class SeenLog:
    """Remembers the hash of every entry; threads may share it.

    Args:
        heads: checkpoints from outside the store, which the log must continue.
        key: its checkpoints in the store must be continued too; None reads none of them.
    """

    def __init__(self, heads: Sequence[TreeHead], key: PublicKey | None) -> None:
        self._heads = heads
        self._key = key
        self._lock = threading.Lock()
        self._leaves: list[bytes] = []
        self._decisions: dict[str, int] = {}

    def advance(self, session: Session) -> None:
        """See what was appended since; the first time the whole log is compared with its rows.

        Raises:
            CannotDecide: the log does not continue what was seen, or an entry has not its row.
        """
        with self._lock:
            leaves, seen = log_scan.leaves(session, log.size_of(session)), len(self._leaves)
            if leaves[:seen] != self._leaves:
                raise CannotDecide("the log does not continue what this process saw: entries were deleted or rewritten")
            for problem in () if seen else self._problems(session):
                raise CannotDecide(f"{problem}; audit db check names every place")
            places: dict[str, dict[str, int]] = {}
            for place, (kind, ref) in enumerate(session.connection().exec_driver_sql(NEW.format(seen)), start=seen):
                places.setdefault(kind, {})[ref] = place
            for kind, refs in places.items() if seen else ():
                _require_rows(session, kind, refs, leaves)
            self._leaves = leaves
            self._decisions |= places.get(DECISION_KIND, {})

    def _problems(self, session: Session) -> Iterator[str]:
        heads = (*self._heads, *_signed_heads(session, self._key))
        scanned = log_scan.scan(session, frozenset(head.size for head in heads))
        yield from notes.uncontinued(scanned, heads)
        yield from (f"{broken.place}: {broken.message}" for broken in log_damage(session, scanned))

    def require_later(self, session: Session, seq: int) -> None:
        """Raises CannotDecide unless each decision that was logged after an entry has its row."""
        with self._lock:
            later = {ref: place for ref, place in self._decisions.items() if place > seq}
            _require_rows(session, DECISION_KIND, later, self._leaves)


def _signed_heads(session: Session, key: PublicKey | None) -> Iterator[TreeHead]:
    if key is None:
        return
    for note in session.scalars(select(CheckpointRow.note)):
        with suppress(UserError):  # another key's
            yield notes.opened(note, key, "checkpoint")


def _require_rows(session: Session, kind: str, places: Mapping[str, int], leaves: Sequence[bytes]) -> None:
    if kind in log.OWN_TEXT or not places:
        return
    firsts = {ref.lstrip("[").partition(",")[0] for ref in places}
    stored = {row.ref: leaf_hash(row.data) for row in entries.rows(session, kind, firsts)}
    gone = erased(session, kind)
    for ref, place in places.items():
        if stored.get(ref) != leaves[place] and (ref in stored or ref not in gone):
            raise CannotDecide(f"log entry {place}: {kind} {ref} was edited or deleted after it was logged")
