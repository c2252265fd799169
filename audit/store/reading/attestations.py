"""Signed statements of the store, and registrations of suites and policies.

A registration precedes a run if its entry of the log precedes the run's: no clock decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.store.base.canonical import jsonable, storable
from audit.store.base.transactions import Transaction, reads, writes
from audit.store.base.values import StoredDecision
from audit.store.tables.log import LogEntryRow
from audit.store.tables.runs import ArtifactRow, find_run, value_of
from audit.store.tables.verdicts import AttestationRow, RegistrationRow
from audit.store.writing import writer


@dataclass(frozen=True, slots=True)
class StoredAttestation:
    """A signed statement. `envelope` is the text of the DSSE envelope; `run` is None if it is about no stored run."""

    run: str | None
    predicate_type: str
    payload_sha256: str
    envelope: str
    subjects: tuple[Mapping[str, str], ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Registration:
    """A suite and a policy by digest, committed to in the log."""

    suite_name: str
    suite_sha256: str
    policy_name: str
    policy_sha256: str
    actor: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredRegistration:
    """A registration with its place in the log, and whether it precedes the run that was asked about."""

    registration: Registration
    entry: int
    precedes: bool


def add_decision(session: Session, decision: StoredDecision, statement: StoredAttestation | None = None) -> None:
    """Insert a gate's decision and its statement, both or none."""
    writer.add_decision(session, decision)
    if statement is not None:
        session.add(_row(session, statement))


def _row(session: Session, item: StoredAttestation) -> AttestationRow:
    given = asdict(item) | {"subjects": jsonable(item.subjects)}
    run = given.pop("run")
    return AttestationRow(run_id=None if run is None else find_run(session, run).id, **given)


def _add(session: Session, attestations: Sequence[StoredAttestation]) -> None:
    """Record signed statements, all or none."""
    session.add_all([_row(session, item) for item in attestations])


def _has(session: Session, payload_sha256: str) -> bool:
    """True if the store has a statement with these signed bytes."""
    query = select(AttestationRow.id).where(AttestationRow.payload_sha256 == payload_sha256).limit(1)
    return session.scalars(query).one_or_none() is not None


def _of_run(session: Session, run: str, types: Sequence[str] | None = None) -> tuple[StoredAttestation, ...]:
    """The statements about a run, oldest first; only those of the types, if any are given."""
    row = find_run(session, run)
    query = select(AttestationRow).where(AttestationRow.run_id == row.id).order_by(AttestationRow.id)
    if types is not None:
        query = query.where(AttestationRow.predicate_type.in_(types))
    return tuple(_stored(result, run) for result in session.scalars(query))


def _stored(row: AttestationRow, run: str | None) -> StoredAttestation:
    return value_of(StoredAttestation, row, run=run, subjects=tuple(row.subjects))


def _newest_entry(session: Session, suite_sha256: str) -> int:
    query = select(RegistrationRow.id).where(RegistrationRow.suite_sha256 == suite_sha256)
    newest = session.scalars(query.order_by(RegistrationRow.id.desc()).limit(1)).one()
    return _place(session, "registration", newest) or 0


def _registrations(session: Session, run: str) -> tuple[StoredRegistration, ...]:
    """The registrations of a run's suite, oldest first."""
    row = find_run(session, run)
    begun = _place(session, "run", row.id)
    suite = session.get_one(ArtifactRow, row.suite_artifact_id)
    query = select(RegistrationRow).where(RegistrationRow.suite_sha256 == suite.sha256)
    result = []
    for registered in session.scalars(query.order_by(RegistrationRow.id)):
        place = _place(session, "registration", registered.id)
        if place is not None:
            precedes = begun is not None and place < begun
            result.append(StoredRegistration(value_of(Registration, registered), place, precedes))
    return tuple(result)


def _place(session: Session, kind: str, key: int) -> int | None:
    """The entry of a row in the log; None if it has none."""
    query = select(LogEntryRow.seq).where(LogEntryRow.kind == kind, LogEntryRow.ref == str(key))
    return session.scalars(query.order_by(LogEntryRow.seq).limit(1)).one_or_none()


@dataclass(frozen=True, slots=True)
class Attestations:
    """The statements and registrations of an open store; each call is one transaction."""

    read: Transaction
    write: Transaction

    add = writes(_add)
    of_run = reads(_of_run)
    has = reads(_has)
    registrations = reads(_registrations)

    def register(self, registration: Registration) -> int:
        """Commit to a suite and a policy; returns the place in the log."""
        given = asdict(registration)
        texts = {name: storable(value) for name, value in given.items() if isinstance(value, str)}
        row = RegistrationRow(**given | texts)
        self.write(lambda session: session.add(row))
        return int(self.read(lambda session: _newest_entry(session, registration.suite_sha256)))
