"""Signed checkpoints of the log: their rows, and the log compared with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.store.ledger import log, log_scan
from audit.store.tables.log import CheckpointRow


@dataclass(frozen=True, slots=True)
class TreeHead:
    """Size and root of the log."""

    size: int
    root: bytes


def known(session: Session) -> tuple[TreeHead, ...]:
    """The checkpoints that the store has, oldest first."""
    rows = session.execute(select(CheckpointRow.size, CheckpointRow.root).order_by(CheckpointRow.id))
    return tuple(TreeHead(size, bytes.fromhex(root)) for size, root in rows)


def head(session: Session) -> TreeHead:
    """Size and root of the log as it is now."""
    size = log.size_of(session)
    return TreeHead(size, log.root_of(log.frontier_of(session, size)))


def add(session: Session, sign: Callable[[TreeHead], str]) -> TreeHead:
    """Sign the log as it is now and record the note; `sign` may refuse by raising."""
    now = head(session)
    row = CheckpointRow(size=now.size, root=now.root.hex(), note=sign(now), created_at=datetime.now(UTC))
    session.add(row)
    return now


def compare(session: Session, known_heads: Sequence[TreeHead]) -> Iterator[str]:
    """Why the log does not continue that of a checkpoint, one line for each that it does not."""
    scanned = log_scan.scan(session, frozenset(head.size for head in known_heads))
    for old in known_heads:
        if old.size > scanned.size:
            yield (
                f"the log has {scanned.size} entries, the checkpoint {old.size}: entries were cut off, or an older "
                "copy of the store was put in place"
            )
        elif scanned.roots.get(old.size) != old.root:
            yield f"the first {old.size} entries are not those of the checkpoint: the log was rewritten"
