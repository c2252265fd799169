"""Tables of the store's log: its entries, and the checkpoints that were signed of it."""

# no `from __future__ import annotations`: see `audit.store.tables.runs`

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Digest, Key, UtcTime


class LogEntryRow(Base):
    """One entry of the log, a leaf of its Merkle tree."""

    __tablename__ = "log_entry"

    seq: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=False)
    """Place in the log, from 0."""
    kind: Mapped[str] = mapped_column(String(32))
    """Table of the row, or a kind of `audit.store.ledger.entries` that has its own text."""
    ref: Mapped[str] = mapped_column(Text)
    """Primary key of the row: a number as text, or a JSON list."""
    text: Mapped[str | None] = mapped_column(Text)
    """The bytes that were hashed, as ASCII; NULL if the row gives them."""
    leaf: Mapped[bytes] = mapped_column(LargeBinary)
    """Leaf hash, 32 bytes (RFC 6962)."""
    node: Mapped[bytes] = mapped_column(LargeBinary)
    """Root of the largest perfect subtree that this entry completes, 32 bytes."""


class CheckpointRow(Base):
    """A signed checkpoint: size and root of the log at a moment."""

    __tablename__ = "checkpoint"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    root: Mapped[str] = mapped_column(Digest)
    note: Mapped[str] = mapped_column(Text)
    """The signed note (`audit.store.ledger.notes`)."""
    created_at: Mapped[datetime] = mapped_column(UtcTime)
