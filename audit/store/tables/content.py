"""Tables whose rows may be erased, the record of each erasure, and what happened in requests beside their tokens.

Prompts, outputs and findings that quote them live apart from the evidence, which keeps only salted commitments to
them. An erased row takes its salt along, so that its commitment can no longer be tested by guessing.

Events of grammars, tool calls and filters are read from the traces. The log covers those of grammars and filters, which
stay after an erasure and hold no text of the answer. Tool calls are what the model wrote, so they can be erased.
"""

# no `from __future__ import annotations`: see `audit.store.tables.runs`

from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, Boolean, ForeignKey, Index, Integer, LargeBinary, String, Text
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


class ConstraintEventRow(Base):
    """The account of a request's grammar, made by reading the answer once more; NULL where it states nothing."""

    __tablename__ = "constraint_event"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    library: Mapped[str | None] = mapped_column(Text)
    version: Mapped[str | None] = mapped_column(Text)
    refused_token: Mapped[int | None] = mapped_column(Integer)
    """Index of the first emitted token that the grammar forbids; NULL if it allows all of them."""
    whole: Mapped[bool | None] = mapped_column(Boolean)
    """True if an end token closed the answer, so that it claims to be complete."""
    not_read: Mapped[str | None] = mapped_column(Text)
    """Why there is no account."""


class ToolEventRow(Base):
    """A tool call in an answer, or, behind the calls, why the rest of the answer could not be read."""

    __tablename__ = "tool_event"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    call: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str | None] = mapped_column(Text)
    arguments: Mapped[str | None] = mapped_column(Text)
    first_token: Mapped[int | None] = mapped_column(Integer)
    end_token: Mapped[int | None] = mapped_column(Integer)
    problem: Mapped[str | None] = mapped_column(Text)


class SafetyEventRow(Base):
    """A decision of a safety filter other than to let text pass."""

    __tablename__ = "safety_event"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    event: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    component: Mapped[str] = mapped_column(Text)
    version: Mapped[str] = mapped_column(Text)
    ruleset_sha256: Mapped[str] = mapped_column(Digest)
    side: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(16))
    category: Mapped[str] = mapped_column(Text)
    token: Mapped[int | None] = mapped_column(Integer)
    """Index of the emitted token with which the filter decided; NULL for a decision about the prompt."""
    first_character: Mapped[int] = mapped_column(Integer)
    end_character: Mapped[int] = mapped_column(Integer)
