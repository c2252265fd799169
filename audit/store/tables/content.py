"""Tables whose rows may be erased, and the record of each erasure.

Prompts, outputs and findings that quote them live apart from the evidence, which keeps only salted commitments to
them. An erased row takes its salt along, so that its commitment can no longer be tested by guessing.
"""

# no `from __future__ import annotations`: see `audit.store.tables.runs`

from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Digest, Key, UtcTime

CONTENT: Final = "content"
"""`ErasureRow.what` of a request: its rows of `content`, `request_tokens`, `token_trace` and `tool_event`."""
FINDING: Final = "finding"
"""`ErasureRow.what` of a check's result: its row of `finding`."""


class ContentRow(Base):
    """Prompt and answer of a request, with unsalted digests; `request` holds commitments to it."""

    __tablename__ = "content"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    salt: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Key of the commitments."""
    prompt_ids: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """The prompt's tokens."""
    prompt_sha256: Mapped[str] = mapped_column(Digest)
    output_sha256: Mapped[str] = mapped_column(Digest)
    text: Mapped[str] = mapped_column(Text)


class FindingRow(Base):
    """The findings of a check's result; they may quote outputs."""

    __tablename__ = "finding"

    check_result_id: Mapped[int] = mapped_column(ForeignKey("check_result.id"), primary_key=True)
    salt: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Key of `check_result.findings_commitment`; NULL for results of stores without commitments."""
    summary: Mapped[str | None] = mapped_column(Text)
    """The summary, if it quotes a finding: `check_result.summary` then has it without the quotation."""
    findings: Mapped[list[Any]] = mapped_column(JSON)


class ErasureRow(Base):
    """One erasure: of a request's content, or of a result's findings."""

    __tablename__ = "erasure"
    __table_args__ = (Index(None, "run_id"), Index(None, "request_id"), Index(None, "check_result_id"))

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    request_id: Mapped[int | None] = mapped_column(ForeignKey("request.id"))
    check_result_id: Mapped[int | None] = mapped_column(ForeignKey("check_result.id"))
    what: Mapped[str] = mapped_column(String(16))
    """`CONTENT` or `FINDING`."""
    reason: Mapped[str] = mapped_column(Text)
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
