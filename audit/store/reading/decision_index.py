"""Gate decisions by the digests of the models that a run used, for a server that asks again and again.

The reader keeps a connection open and sees every later write. An SQLite file that was removed or replaced is not read
on: the reader opens the path anew, or fails. Every decision comes with the answer whether the log covers its row. The
log must continue what the reader saw of it.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Engine, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.store import migrate
from audit.store.base import failures
from audit.store.base.canonical import sha256_json
from audit.store.base.connection import READING, is_sqlite, open_readonly, parse_url, shown, sqlite_path
from audit.store.base.governance import used_drafts
from audit.store.base.keys import PublicKey
from audit.store.base.merkle import leaf_hash, root_over
from audit.store.base.values import RunStatus
from audit.store.ledger import entries, log_scan, notes
from audit.store.ledger.notes import TreeHead
from audit.store.reading import outcomes
from audit.store.reading.seen_log import DECISION_KIND, SeenLog
from audit.store.tables.log import CheckpointRow, LogEntryRow
from audit.store.tables.runs import ArmRow, ArtifactRow, RunArtifactRow, RunRow, value_of
from audit.store.tables.verdicts import AttestationRow, CheckRow, GateDecisionRow


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A model of a run: its kind, its role (its name in the suite), its digest."""

    kind: str
    role: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DecidedRun:
    """A run that used a model, with its newest decision under one of the accepted policies.

    configurations: digests of the effective configurations of the candidate arms. drafts: names of the drafts that
    candidate arms used; None if an arm's record does not say. logged: True if the log's entry of the decision has the
    hash of its row. signed: True if a checkpoint signed by the reader's key covers that entry; None without a key.
    serves: what alone a deployment may serve by it; None for all that the policy lists.
    until: end of the first waiver or review that the decision rests on; None if it rests on none that ends.
    later_fault: the arm and check of a result after the decision that contradicts a claim.
    """

    run: str
    finished: bool
    models: tuple[UsedModel, ...]
    configurations: frozenset[str]
    drafts: frozenset[str] | None
    decision: str
    policy_sha256: str
    policy: Mapping[str, Any]
    actor: str
    decided_at: datetime
    serves: frozenset[str] | None
    until: datetime | None
    logged: bool
    signed: bool | None
    later_fault: str | None
    sha256: str
    """Of the decision's row, as its signed statement names it."""


@dataclass(frozen=True, slots=True)
class KeptStatement:
    """A signed statement of the store by the number of its row and the digest that the row states of its payload."""

    id: int
    payload_sha256: str


RUNS: Final = (
    select(RunArtifactRow.run_id)
    .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
    .where(ArtifactRow.sha256.in_(bindparam("digests", expanding=True)))
    .group_by(RunArtifactRow.run_id)
    .having(func.count(func.distinct(ArtifactRow.sha256)) == bindparam("number"))
)
NEWEST: Final = (
    select(func.max(GateDecisionRow.id))
    .where(GateDecisionRow.run_id.in_(RUNS))
    .where(GateDecisionRow.policy_sha256.in_(bindparam("policies", expanding=True)))
    .group_by(GateDecisionRow.run_id)
)
DECISION: Final = (
    select(GateDecisionRow, RunRow.ulid, RunRow.status)
    .join(RunRow, RunRow.id == GateDecisionRow.run_id)
    .where(GateDecisionRow.id == bindparam("decision"))
)
ARMS: Final = select(ArmRow.spec, ArmRow.effective).where(
    ArmRow.run_id == bindparam("run"), ArmRow.kind == ArmKind.CANDIDATE.value
)
MODELS: Final = (
    select(ArtifactRow.kind, RunArtifactRow.role, ArtifactRow.sha256)
    .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
    .where(RunArtifactRow.run_id == bindparam("run"))
)
ENTRY: Final = (
    select(LogEntryRow.seq, LogEntryRow.leaf)
    .where(LogEntryRow.kind == DECISION_KIND, LogEntryRow.ref == bindparam("ref"))
    .order_by(LogEntryRow.seq.desc())
    .limit(1)
)
LATER_FAULT: Final = (
    select(CheckRow.name, ArmRow.name)
    .join(ArmRow, ArmRow.id == CheckRow.arm_id)
    .where(CheckRow.id.in_(outcomes.latest_checks(bindparam("run"))), ArmRow.kind == ArmKind.CANDIDATE.value)
    .where(CheckRow.verdict == Verdict.FAULT.value, CheckRow.created_at > bindparam("at"))
    .limit(1)
)
STATEMENTS: Final = (
    select(AttestationRow.id, AttestationRow.payload_sha256)
    .join(RunRow, RunRow.id == AttestationRow.run_id)
    .where(RunRow.ulid == bindparam("run"), AttestationRow.predicate_type == bindparam("kind"))
)
ENVELOPE: Final = select(AttestationRow.envelope).where(AttestationRow.id == bindparam("id"))
"""Statements are made once: making one takes longer than SQLite takes to answer it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    seq: int
    leaf: bytes


class DecisionReader:
    """Reads decisions from a store; threads may share it.

    Args:
        url: path or URL of the store.
        key: public key whose checkpoints must cover a decision; None if none need to.
        heads: checkpoints from outside the store, which its log must continue.
    """

    def __init__(self, url: str, key: PublicKey | None, heads: Sequence[TreeHead] = ()) -> None:
        self._url = parse_url(url)
        self._key = key
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None
        # what a signed root covers stays covered, so each entry is verified once
        self._covered: set[_Entry] = set()
        self._seen = SeenLog(heads, key)

    def find(self, digests: Collection[str], policies: Collection[str]) -> Iterator[DecidedRun]:
        """The runs that used models of all these digests, with their newest decision, newest first.

        Each run is read when it is asked for, because the first that fits decides and a store may hold thousands.

        Raises:
            UserError: no store at the path, or one of another revision.
            StoreFailure: the database failed.
            CannotDecide: the log does not continue what this reader saw of it, or lacks the row of a later decision.
        """
        with self._reading() as session:
            self._seen.advance(session)
            # ids of the newest decision on each run that used all digests
            wanted = sorted(set(digests))
            values = {"digests": wanted, "number": len(wanted), "policies": sorted(policies)}
            for key in sorted(session.scalars(NEWEST, values), reverse=True):
                yield self._run(session, key)

    def statements(self, run: str, predicate_type: str) -> tuple[KeptStatement, ...]:
        """The signed statements of a type about a run, without their envelopes; raises as `find`."""
        with self._reading() as session:
            rows = session.execute(STATEMENTS, {"run": run, "kind": predicate_type})
            return tuple(KeptStatement(*row) for row in rows)

    def envelope(self, statement: KeptStatement) -> str:
        """The text of a statement's envelope; raises as `find`."""
        with self._reading() as session:
            return session.execute(ENVELOPE, {"id": statement.id}).scalar_one()

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        engine = self._open()
        try:
            with Session(engine.execution_options(**{READING: True})) as session, session.begin():
                yield session
        except DBAPIError as error:
            raise failures.failure(shown(self._url), error) from error

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
            self._engine = None

    def _open(self) -> Engine:
        with self._lock:
            file = failures.identity(sqlite_path(self._url)) if is_sqlite(self._url) else None
            if is_sqlite(self._url) and file is None:
                raise UserError(f"{shown(self._url)}: no such store")
            if self._engine is None or file != self._file:
                if self._engine is not None:
                    self._engine.dispose()
                    self._engine = None
                self._engine, self._file = migrate.opened(open_readonly(self._url), self._url), file
            return self._engine

    def _run(self, session: Session, key: int) -> DecidedRun:
        row, ulid, status = session.execute(DECISION, {"decision": key}).one()
        arms = session.execute(ARMS, {"run": row.run_id}).all()
        models = session.execute(MODELS, {"run": row.run_id})
        entry, decision = _entry(session, key), outcomes.as_decision(row, ulid)
        if entry is not None:
            self._seen.require_later(session, entry.seq)
        return value_of(
            DecidedRun,
            row,
            run=ulid,
            finished=status == RunStatus.FINISHED,
            models=tuple(UsedModel(kind, role, sha256) for kind, role, sha256 in models),
            configurations=frozenset(sha256_json(arm.effective) for arm in arms),
            drafts=used_drafts([arm.spec for arm in arms]),
            decided_at=row.created_at,
            serves=decision.serves,
            until=decision.until,
            logged=entry is not None,
            signed=None if self._key is None else entry is not None and self._signed(session, self._key, entry),
            later_fault=_later_fault(session, row),
            sha256=decision.sha256,
        )

    def _signed(self, session: Session, key: PublicKey, entry: _Entry) -> bool:
        if entry not in self._covered and _signed_root_covers(session, key, entry):
            self._covered.add(entry)
        return entry in self._covered


def _entry(session: Session, key: int) -> _Entry | None:
    """The log's entry of a decision; None if its hash is not that of the row."""
    logged = session.execute(ENTRY, {"ref": str(key)}).one_or_none()
    (row,) = entries.rows(session, DECISION_KIND, [key])
    if logged is None or bytes(logged.leaf) != leaf_hash(row.data):
        return None
    return _Entry(logged.seq, bytes(logged.leaf))


def _signed_root_covers(session: Session, key: PublicKey, entry: _Entry) -> bool:
    query = select(CheckpointRow.note).where(CheckpointRow.size > entry.seq).order_by(CheckpointRow.id.desc())
    for note in session.scalars(query):
        try:
            head = notes.opened(note, key, "checkpoint")
        except UserError:
            continue
        leaves = log_scan.leaves(session, head.size)
        if len(leaves) == head.size > entry.seq and root_over(leaves) == head.root:
            return leaves[entry.seq] == entry.leaf
    return False


def _later_fault(session: Session, row: GateDecisionRow) -> str | None:
    result = session.execute(LATER_FAULT, {"run": row.run_id, "at": row.created_at}).one_or_none()
    return None if result is None else f"arm {result[1]}: {result[0]}"
