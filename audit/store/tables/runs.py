"""The provenance store's tables, as SQLAlchemy mapped classes; finds runs and arms by name, and makes values of rows.

Counts are stored, never rates. Digests are hex SHA-256. Tables are append-only (`APPEND_ONLY`); of a run, its progress
may change.
"""

# no `from __future__ import annotations`: SQLAlchemy would evaluate every annotation from its text, at every start

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from audit.errors import UserError

REVISION: Final = "0001"
"""The migration that these classes describe; `Store.open` compares it with the store's."""

APPEND_ONLY: Final = (
    *("artifact", "environment", "run_artifact", "run_event", "arm", "arm_speculation", "request", "content"),
    *("request_steps", "request_tokens", "token_piece", "token_trace", "constraint_event", "tool_event"),
    *("safety_event", "judgement", "check_result", "finding", "erasure", "coverage", "gate_decision", "attachment"),
    *("attestation", "registration", "watch", "watch_reading", "log_entry", "checkpoint"),
)
"""Tables whose rows may be neither updated nor deleted, but for deletions of `ERASABLE` ones."""

ERASABLE: Final = ("content", "request_tokens", "token_trace", "tool_event", "finding")
"""Tables whose rows may be deleted if a row of `erasure` names them."""

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite aliases only columns of type INTEGER to the row id.
Key = BigInteger().with_variant(Integer(), "sqlite")
Digest = String(64)
Json = dict[str, Any]


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC; SQLite stores no time zone, so reading restores it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; raises on a moment without a time zone."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Attach UTC as time zone."""
        del dialect
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Base(DeclarativeBase):
    """Root of the mapped classes."""

    metadata = MetaData(naming_convention=NAMING)


class ArtifactRow(Base):
    """An artifact of a run, by content: target, draft, gguf, tokenizer, suite or policy."""

    __tablename__ = "artifact"
    __table_args__ = (UniqueConstraint("kind", "sha256"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(Text)
    revision: Mapped[str | None] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(Digest)
    manifest: Mapped[Json] = mapped_column(JSON)


class EnvironmentRow(Base):
    """Software, hardware and code of a run; several runs may share a row."""

    __tablename__ = "environment"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    sha256: Mapped[str] = mapped_column(Digest, unique=True)
    packages: Mapped[Json] = mapped_column(JSON)
    hardware: Mapped[Json] = mapped_column(JSON)
    code: Mapped[Json] = mapped_column(JSON)


class RunRow(Base):
    """One execution of a suite."""

    __tablename__ = "run"
    __table_args__ = (Index(None, "started_at"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    ulid: Mapped[str] = mapped_column(String(26), unique=True)
    suite_name: Mapped[str] = mapped_column(Text)
    suite_artifact_id: Mapped[int] = mapped_column(ForeignKey("artifact.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    config: Mapped[Json] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime] = mapped_column(UtcTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcTime)
    actor: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str | None] = mapped_column(Text)
    ticket: Mapped[str | None] = mapped_column(Text)
    code_commit: Mapped[str | None] = mapped_column(Text)
    record_root: Mapped[str | None] = mapped_column(Digest)
    content_root: Mapped[str | None] = mapped_column(Digest)
    """See `audit.store.reading.content_root`; NULL until the run is finished, and in runs of older versions."""
    tokens: Mapped[int | None] = mapped_column(BigInteger)
    exit_code: Mapped[int | None] = mapped_column(Integer)


class RunArtifactRow(Base):
    """A run's use of an artifact: its role and its name in the suite."""

    __tablename__ = "run_artifact"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    revision: Mapped[str | None] = mapped_column(Text)
    artifact_id: Mapped[int] = mapped_column(ForeignKey("artifact.id"))


IMPORTED: Final = "imported from bundle sha256:"
"""Beginning of the detail of the event that an import adds."""


class RunEventRow(Base):
    """A run's change of state; the run's status is that of its last event."""

    __tablename__ = "run_event"
    __table_args__ = (Index(None, "run_id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    status: Mapped[str] = mapped_column(String(16))
    at: Mapped[datetime] = mapped_column(UtcTime)
    detail: Mapped[str] = mapped_column(Text)


class ArmRow(Base):
    """One configuration under audit, or one it is compared with."""

    __tablename__ = "arm"
    __table_args__ = (UniqueConstraint("run_id", "name"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    name: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(String(16))
    level: Mapped[str] = mapped_column(String(4))
    spec: Mapped[Json] = mapped_column(JSON)
    effective: Mapped[Json] = mapped_column(JSON)
    lossless: Mapped[bool] = mapped_column(Boolean)
    context_sha256: Mapped[str] = mapped_column(Digest)
    """Binds every request of the arm to the run's suite, artifacts and environment."""


class ArmSpeculationRow(Base):
    """The speculation settings of an arm as columns (`audit.store.base.governance`), read from its configuration."""

    __tablename__ = "arm_speculation"

    arm_id: Mapped[int] = mapped_column(ForeignKey("arm.id"), primary_key=True)
    speculation: Mapped[bool] = mapped_column(Boolean)
    proposer: Mapped[str | None] = mapped_column(Text)
    proposer_version: Mapped[str | None] = mapped_column(Text)
    gamma: Mapped[int | None] = mapped_column(Integer)
    tree: Mapped[str | None] = mapped_column(Text)
    rule: Mapped[str | None] = mapped_column(String(16))
    expected_equivalence: Mapped[str | None] = mapped_column(String(16))
    numerics_probe_sha256: Mapped[str | None] = mapped_column(Digest)


class RequestRow(Base):
    """One finished request. `seed` and `stream` are text: they may exceed 2^53."""

    __tablename__ = "request"
    __table_args__ = (
        UniqueConstraint("arm_id", "case_id", "sample"),
        UniqueConstraint("run_id", "record_hash"),
        Index(None, "run_id", "case_id"),
        Index(None, "run_id", "domain", "case_id"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    arm_id: Mapped[int] = mapped_column(ForeignKey("arm.id"))
    case_id: Mapped[str] = mapped_column(Text)
    sample: Mapped[int] = mapped_column(Integer)
    domain: Mapped[str] = mapped_column(Text)
    sampling_sha256: Mapped[str] = mapped_column(Digest)
    """Pairs requests of two arms that ran at the same sampling parameters and seed."""
    seed: Mapped[str] = mapped_column(String(20))
    stream: Mapped[str] = mapped_column(String(20))
    n_prompt: Mapped[int] = mapped_column(Integer)
    n_output: Mapped[int] = mapped_column(Integer)
    n_steps: Mapped[int] = mapped_column(Integer)
    n_drafted: Mapped[int] = mapped_column(Integer)
    n_accepted: Mapped[int] = mapped_column(Integer)
    finish_reason: Mapped[str] = mapped_column(String(16))
    latency_us: Mapped[int] = mapped_column(BigInteger)
    prompt_commitment: Mapped[str | None] = mapped_column(Digest)
    output_commitment: Mapped[str | None] = mapped_column(Digest)
    trace_commitment: Mapped[str | None] = mapped_column(Digest)
    tokens_commitment: Mapped[str | None] = mapped_column(Digest)
    """Salted commitments (`audit.store.base.commitments`)."""
    record_version: Mapped[int] = mapped_column(Integer)
    """Cover of the record hash: 1 the content itself, 2 the commitments to it."""
    record_hash: Mapped[str] = mapped_column(Digest)


class RequestStepsRow(Base):
    """The steps of a request, as JSON text (`audit.store.writing.readable.StepColumns`); see the view `decode_step`."""

    __tablename__ = "request_steps"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    steps: Mapped[str] = mapped_column(Text)
    draft_versions: Mapped[str | None] = mapped_column(Text)
    """Digest of each drafting version of a draft that learns, by its number (`engine.core.versions`)."""


class RequestTokensRow(Base):
    """The tokens of a request, as JSON text (`audit.store.writing.readable.TokenColumns`); see the view `v_token`."""

    __tablename__ = "request_tokens"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    token: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    parent: Mapped[str | None] = mapped_column(Text)
    depth: Mapped[str | None] = mapped_column(Text)
    p: Mapped[str | None] = mapped_column(Text)
    q: Mapped[str | None] = mapped_column(Text)
    logprob: Mapped[str | None] = mapped_column(Text)


TOKEN_COLUMNS: Final = ("token", "role", "parent", "depth", "p", "q", "logprob")
"""Columns of a request's tokens that its commitment covers, in this order."""


class TokenPieceRow(Base):
    """The text of a token that occurs in the store, by its tokenizer; not evidence, and not hashed."""

    __tablename__ = "token_piece"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  # SQLAlchemy's interface

    tokenizer_id: Mapped[int] = mapped_column(ForeignKey("artifact.id"), primary_key=True)
    token: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    piece: Mapped[str] = mapped_column(Text)


class TokenTraceRow(Base):
    """A request's whole record (`engine.record.trace`); `sha256` is of its uncompressed content."""

    __tablename__ = "token_trace"

    request_id: Mapped[int] = mapped_column(ForeignKey("request.id"), primary_key=True)
    format: Mapped[int] = mapped_column(Integer)
    n_events: Mapped[int] = mapped_column(Integer)
    sha256: Mapped[str] = mapped_column(Digest)
    payload: Mapped[bytes] = mapped_column(LargeBinary)


T = TypeVar("T")


def now() -> datetime:
    """The current moment in UTC."""
    return datetime.now(UTC)


def find_run(session: Session, ulid: str) -> RunRow:
    """The run with exactly that ULID. Raises UserError: the store has no such run."""
    run = session.scalars(select(RunRow).where(RunRow.ulid == ulid)).one_or_none()
    if run is None:
        raise UserError(f"no run {ulid} in this store; see: audit list")
    return run


def find_arm(session: Session, run: RunRow, name: str) -> ArmRow:
    """A run's arm by name. Raises UserError: the run has no such arm."""
    arm = session.scalars(select(ArmRow).where(ArmRow.run_id == run.id, ArmRow.name == name)).one_or_none()
    if arm is None:
        known = ", ".join(session.scalars(select(ArmRow.name).where(ArmRow.run_id == run.id).order_by(ArmRow.id)))
        raise UserError(f"run {run.ulid} has no arm {name!r}; it has: {known}")
    return arm


def value_of(kind: type[T], row: Any, /, **other: Any) -> T:
    """A value whose fields are the row's columns of the same names, apart from the `other` ones."""
    names = (field.name for field in fields(cast(Any, kind)) if field.init and field.name not in other)
    return kind(**{name: getattr(row, name) for name in names}, **other)
