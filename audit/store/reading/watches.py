"""Watches of live servers: write their plans and readings, and read the series back.

The tables have the plan of each watch, and what every reading of the counters gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import BigInteger, Boolean, Double, ForeignKey, Index, Integer, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from audit.store.base.canonical import storable
from audit.store.base.transactions import Transaction, reads, writes
from audit.store.tables.runs import ArmRow, Base, Key, RequestRow, RunRow, UtcTime, find_run, value_of


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Settings of a test.

    Attributes:
        url: address of the counters.
        run: ULID of the run whose acceptance is the reference, if it is one's.
        reference: accepted per drafted token below which acceptance has fallen; None for a series without a test.
        reference_from: where the reference comes from, in words.
        rise_reference: the rate above which acceptance has risen too far; None for no such test.
        unit: drafted tokens of the longest piece of traffic; None for the server's own draft length.
        alpha: expected false alarms per 30 days, over all models and both tests.
        interval_s: planned seconds between readings.
    """

    url: str
    run: str | None
    reference: float | None
    reference_from: str
    rise_reference: float | None
    unit: float | None
    alpha: float
    interval_s: float


@dataclass(frozen=True, slots=True)
class StoredWatch:
    """A watch of the store."""

    id: int
    settings: WatchSettings
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WatchReading:
    """One model's reading; the fields are the columns of `watch_reading`, which the data dictionary describes."""

    model: str
    at: datetime
    seconds: float | None = None
    gap: str | None = None
    restarted: bool = False
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    positions: str | None = None
    acceptance_length: float | None = None
    requests: int | None = None
    errors: int | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    draft_length: int | None = None
    fall: float | None = None
    rise: float | None = None
    alarm: str | None = None
    counters: str | None = None
    label: str | None = None
    answers: str | None = None
    changed: int | None = None


@dataclass(frozen=True, slots=True)
class PromptDrafts:
    """Drafted and accepted tokens of one request, with its prompt."""

    case_id: str
    drafted: int
    accepted: int


COLUMNS = tuple(field.name for field in fields(WatchReading))


def _begun(session: Session, settings: WatchSettings, actor: str, at: datetime) -> StoredWatch:
    """The newest watch with these settings, or a new one."""
    same = [watch for watch in _all(session) if watch.settings == settings]
    if same:
        return same[-1]
    names = ("reference", "rise_reference", "unit", "alpha", "interval_s")
    row = WatchRow(
        **{name: getattr(settings, name) for name in names},
        run_id=None if settings.run is None else find_run(session, settings.run).id,
        url=storable(settings.url),
        reference_from=storable(settings.reference_from),
        actor=storable(actor),
        created_at=at,
    )
    session.add(row)
    session.flush()
    return StoredWatch(row.id, settings, at)


def _add(session: Session, watch: int, readings: Sequence[WatchReading]) -> None:
    """Record readings of one moment, all or none."""
    session.add_all([_row(watch, reading) for reading in readings])


def _row(watch: int, reading: WatchReading) -> WatchReadingRow:
    values = {name: getattr(reading, name) for name in COLUMNS}
    return WatchReadingRow(
        watch_id=watch, **{name: storable(value) if isinstance(value, str) else value for name, value in values.items()}
    )


def _readings(session: Session, watch: int, since: datetime | None = None) -> tuple[WatchReading, ...]:
    """The readings of a watch, oldest first."""
    # columns, not rows of the mapper: a month has tens of thousands
    columns = [getattr(WatchReadingRow, name) for name in COLUMNS]
    query = select(*columns).where(WatchReadingRow.watch_id == watch).order_by(WatchReadingRow.id)
    if since is not None:
        query = query.where(WatchReadingRow.at >= since)
    return tuple(WatchReading(*values) for values in session.execute(query))


def _prompts(session: Session, run: str, arm: str) -> tuple[PromptDrafts, ...]:
    """Drafted and accepted tokens of each request of an arm whose engine reports its steps."""
    query = select(RequestRow.case_id, RequestRow.n_drafted, RequestRow.n_accepted).join(
        ArmRow, ArmRow.id == RequestRow.arm_id
    )
    result = session.execute(query.where(ArmRow.run_id == find_run(session, run).id, ArmRow.name == arm))
    return tuple(PromptDrafts(*row) for row in result)


def _all(session: Session) -> tuple[StoredWatch, ...]:
    """Every watch, oldest first."""
    query = select(WatchRow, RunRow.ulid).outerjoin(RunRow, RunRow.id == WatchRow.run_id).order_by(WatchRow.id)
    return tuple(_stored(row, run) for row, run in session.execute(query))


def _stored(row: WatchRow, run: str | None) -> StoredWatch:
    return StoredWatch(row.id, value_of(WatchSettings, row, run=run), row.created_at)


@dataclass(frozen=True, slots=True)
class Watches:
    """The watches of an open store; each call is one transaction."""

    read: Transaction
    write: Transaction

    begin = writes(_begun)
    add = writes(_add)
    readings = reads(_readings)
    prompts = reads(_prompts)
    all = reads(_all)


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
