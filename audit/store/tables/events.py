"""Tables of what happened in requests beside their tokens: grammars, tool calls, filters; read from the traces.

The log covers events of grammars and filters, which stay after an erasure and hold no text of the answer. Tool calls
are what the model wrote, so they can be erased.
"""

# no `from __future__ import annotations`: SQLAlchemy would evaluate every annotation from its text, at every start

from sqlalchemy import Boolean, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Digest


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
