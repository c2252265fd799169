"""Tables of watches of live servers: the plan of each watch, and what every reading of the counters gave."""

# no `from __future__ import annotations`: see `audit.store.tables.runs`

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, Double, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Key, UtcTime


class WatchRow(Base):
    """Settings of a watch, fixed before its first reading; other settings begin another watch."""

    __tablename__ = "watch"
    __table_args__ = (Index(None, "url"), Index(None, "run_id"))

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    url: Mapped[str] = mapped_column(Text)
    reference: Mapped[float | None] = mapped_column(Double)
    reference_from: Mapped[str] = mapped_column(Text)
    rise_reference: Mapped[float | None] = mapped_column(Double)
    unit: Mapped[float | None] = mapped_column(Double)
    alpha: Mapped[float] = mapped_column(Double)
    interval_s: Mapped[float] = mapped_column(Double)
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class WatchReadingRow(Base):
    """One model's growth since the reading before; NULL in the first reading and across a gap."""

    __tablename__ = "watch_reading"
    __table_args__ = (Index(None, "watch_id", "model", "id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    watch_id: Mapped[int] = mapped_column(ForeignKey("watch.id"))
    model: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcTime)
    seconds: Mapped[float | None] = mapped_column(Double)
    gap: Mapped[str | None] = mapped_column(Text)
    """Why the interval is no evidence; with an empty model, why nothing was read."""
    restarted: Mapped[bool] = mapped_column(Boolean)
    drafts: Mapped[int | None] = mapped_column(BigInteger)
    drafted: Mapped[int | None] = mapped_column(BigInteger)
    accepted: Mapped[int | None] = mapped_column(BigInteger)
    positions: Mapped[str | None] = mapped_column(Text)
    acceptance_length: Mapped[float | None] = mapped_column(Double)
    requests: Mapped[int | None] = mapped_column(BigInteger)
    errors: Mapped[int | None] = mapped_column(BigInteger)
    latency_p50_s: Mapped[float | None] = mapped_column(Double)
    latency_p95_s: Mapped[float | None] = mapped_column(Double)
    latency_p99_s: Mapped[float | None] = mapped_column(Double)
    draft_length: Mapped[int | None] = mapped_column(Integer)
    fall: Mapped[float | None] = mapped_column(Double)
    rise: Mapped[float | None] = mapped_column(Double)
    """Log evidence of each detector after the reading; an alarm restarts it."""
    alarm: Mapped[str | None] = mapped_column(String(8))
    counters: Mapped[str | None] = mapped_column(Text)
    """The counters as they were read, as JSON: the next reading's growth is against them."""
    label: Mapped[str | None] = mapped_column(Text)
    """The part of the traffic; NULL for all of it, which alone is tested."""
    answers: Mapped[str | None] = mapped_column(Text)
    changed: Mapped[int | None] = mapped_column(Integer)
