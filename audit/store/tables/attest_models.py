"""Tables of signed statements, and of suites and policies that were registered before a run."""

# no `from __future__ import annotations`: see `audit.store.tables.runs`

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Digest, Key, UtcTime


class AttestationRow(Base):
    """A signed in-toto statement, as the envelope that was written."""

    __tablename__ = "attestation"
    __table_args__ = (Index(None, "run_id"), Index(None, "payload_sha256"))

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    predicate_type: Mapped[str] = mapped_column(Text)
    payload_sha256: Mapped[str] = mapped_column(Digest)
    """Of the bytes that were signed, without the envelope."""
    envelope: Mapped[str] = mapped_column(Text)
    """The DSSE envelope, as JSON text."""
    subjects: Mapped[list[Any]] = mapped_column(JSON)
    """Name and digest of each subject."""
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class RegistrationRow(Base):
    """Digests of a suite and a policy, committed to before a run; the place in the log shows the order."""

    __tablename__ = "registration"
    __table_args__ = (Index(None, "suite_sha256"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    suite_name: Mapped[str] = mapped_column(Text)
    suite_sha256: Mapped[str] = mapped_column(Digest)
    policy_name: Mapped[str] = mapped_column(Text)
    policy_sha256: Mapped[str] = mapped_column(Digest)
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
