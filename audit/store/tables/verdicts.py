"""Tables of what a run shows: judgements, checks with their coverage, gate decisions and attachments.

The table of the sums that are kept of a run (`audit.store.sums.sums`).

Tables of signed statements, and of suites and policies that were registered before a run.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base, Digest, Json, Key, UtcTime


class JudgementRow(Base):
    """A finished run judged again from its record, with the results that name it."""

    __tablename__ = "judgement"
    __table_args__ = (Index(None, "run_id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class CheckRow(Base):
    """A check's result on one arm; a later row for the same arm and check supersedes it."""

    __tablename__ = "check_result"
    __table_args__ = (Index(None, "run_id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    arm_id: Mapped[int] = mapped_column(ForeignKey("arm.id"))
    name: Mapped[str] = mapped_column(String(64))
    claim: Mapped[str] = mapped_column(String(64))
    verdict: Mapped[str] = mapped_column(String(16))
    level: Mapped[str] = mapped_column(String(4))
    n: Mapped[int] = mapped_column(BigInteger)
    statistic: Mapped[float | None] = mapped_column(Double)
    p_value: Mapped[float | None] = mapped_column(Double)
    effect: Mapped[float | None] = mapped_column(Double)
    bound: Mapped[float | None] = mapped_column(Double)
    margin: Mapped[float | None] = mapped_column(Double)
    summary: Mapped[str] = mapped_column(Text)
    n_findings: Mapped[int] = mapped_column(Integer)
    findings_commitment: Mapped[str | None] = mapped_column(Digest)
    """Salted commitment to the row of `finding`; NULL without one, and for results of older stores."""
    details: Mapped[Json] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    judgement_id: Mapped[int | None] = mapped_column(ForeignKey("judgement.id"))
    """The later judgement that gave this result; NULL for the run's own."""


class CoverageRow(Base):
    """A situation of one arm, as one check examined it; missing where the record cannot show the situation."""

    __tablename__ = "coverage"

    check_result_id: Mapped[int] = mapped_column(ForeignKey("check_result.id"), primary_key=True)
    situation: Mapped[str] = mapped_column(String(64), primary_key=True)
    occurred: Mapped[int] = mapped_column(BigInteger)
    examined: Mapped[int] = mapped_column(BigInteger)
    least: Mapped[int | None] = mapped_column(BigInteger)
    """Occurrences that the check had to examine; NULL if the arm's settings do not ask for the situation."""


class GateDecisionRow(Base):
    """A gate's decision with its policy."""

    __tablename__ = "gate_decision"
    __table_args__ = (Index(None, "run_id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    policy_sha256: Mapped[str] = mapped_column(Digest)
    policy: Mapped[Json] = mapped_column(JSON)
    decision: Mapped[str] = mapped_column(String(16))
    reasons: Mapped[list[Any]] = mapped_column(JSON)
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class AttachmentRow(Base):
    """Evidence bound to an evaluation report: the report's digest before and after."""

    __tablename__ = "attachment"
    __table_args__ = (Index(None, "run_id"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    report_before: Mapped[str] = mapped_column(Digest)
    report_after: Mapped[str] = mapped_column(Digest)
    format: Mapped[str] = mapped_column(String(32))
    location: Mapped[str] = mapped_column(Text)
    statement: Mapped[Json] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class RunSumsRow(Base):
    """Sums over the requests and steps of a run that has ended, as JSON text."""

    __tablename__ = "run_sums"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    format: Mapped[int] = mapped_column(Integer)
    sums: Mapped[str] = mapped_column(Text)


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
