"""Read runs from a store: names, lists, facts, arms with their counts; `audit.store.reading.arm_reader` reads requests.

Functions take an open session.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.evidence.environment import Environment
from audit.evidence.records import ArmKind, Level
from audit.store.base import values
from audit.store.base.ulid import ALPHABET
from audit.store.reading.outcomes import verdicts_of
from audit.store.sums import accounts
from audit.store.tables.runs import (
    IMPORTED,
    ArmRow,
    ArtifactRow,
    EnvironmentRow,
    RequestRow,
    RunArtifactRow,
    RunEventRow,
    RunRow,
    find_run,
    value_of,
)
from audit.store.writing import integrity
from engine.record.effective import Effective

SUGGESTED: Final = 3
"""Number of runs named in an error message."""
PASSED: Final = "passed"
RUN_ENDS: Final[Mapping[int | None, str]] = {0: PASSED, 1: "found a fault", 3: "is undecided"}
"""By exit code of a finished run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Another run of a run's suite with its models."""

    ulid: str
    status: values.RunStatus
    exit_code: int | None

    @property
    def ended(self) -> str:
        """The end in words."""
        if self.status is not values.RunStatus.FINISHED:
            return f"is {self.status}"
        return RUN_ENDS.get(self.exit_code, "failed")


def resolve(session: Session, name: str) -> str:
    """A run's ULID from `latest`, which is the newest that this store did not import, or a unique prefix.

    Raises:
        UserError: no run or several runs match; the message lists suggestions.
    """
    newest = select(RunRow.ulid).order_by(RunRow.started_at.desc(), RunRow.id.desc())
    if name == "latest":
        return _latest(session, newest)
    prefix = name.upper()
    fits: list[str] = []
    if prefix and set(prefix) <= set(ALPHABET):
        fits = list(session.scalars(newest.where(RunRow.ulid.startswith(prefix)).limit(SUGGESTED + 1)))
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UserError(f"run {name!r} is ambiguous; it may be {_listed(fits)}")
    suggested = list(session.scalars(newest.limit(SUGGESTED)))
    if not suggested:
        raise UserError(f"no run {name!r}: the store has no runs yet; make one: audit run SUITE")
    raise UserError(f"no run begins with {name!r}; the newest are {_listed(suggested)} (audit list shows all)")


def _latest(session: Session, newest: Select[str]) -> str:
    # whoever hands over an old bundle must not decide what is newest
    brought = select(RunEventRow.run_id).where(RunEventRow.detail.startswith(IMPORTED))
    own = list(session.scalars(newest.where(RunRow.id.not_in(brought)).limit(1)))
    if own:
        return own[0]
    imported = list(session.scalars(newest.limit(SUGGESTED + 1)))
    if imported:
        raise UserError(f"all runs of the store were imported, and latest is none of those; name {_listed(imported)}")
    raise UserError("the store has no runs yet; make one: audit run SUITE")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SUGGESTED]) + (", ..." if len(names) > SUGGESTED else "")


def run_status(session: Session, ulid: str) -> values.RunStatus:
    """The status of a run."""
    return values.RunStatus(find_run(session, ulid).status)


def finished(session: Session, ulid: str) -> frozenset[values.RequestKey]:
    """The finished requests of a run."""
    return frozenset(
        values.RequestKey(leaf.arm, leaf.case_id, leaf.sample)
        for leaf in integrity.stored_leaves(session, find_run(session, ulid).id)
    )


def list_runs(session: Session, limit: int) -> tuple[values.RunSummary, ...]:
    """The runs, newest first."""
    runs = session.scalars(select(RunRow).order_by(RunRow.id.desc()).limit(limit)).all()
    return tuple(_summary(session, run) for run in runs)


def _summary(session: Session, run: RunRow) -> values.RunSummary:
    return value_of(
        values.RunSummary,
        run,
        status=values.RunStatus(run.status),
        arms=_count(session, ArmRow, run),
        requests=_count(session, RequestRow, run),
        verdicts=verdicts_of(session, [run.id]).get(run.id, {}),
    )


def _count(session: Session, table: type[ArmRow] | type[RequestRow], run: RunRow) -> int:
    return session.execute(select(func.count()).select_from(table).where(table.run_id == run.id)).scalar_one()


def load_run(session: Session, ulid: str) -> values.StoredRun:
    """A run without its requests."""
    run = find_run(session, ulid)
    suite = session.get_one(ArtifactRow, run.suite_artifact_id)
    place = session.get_one(EnvironmentRow, run.environment_id)
    return value_of(
        values.StoredRun,
        run,
        suite_sha256=suite.sha256,
        suite_document=suite.manifest,
        status=values.RunStatus(run.status),
        artifacts=_artifacts(session, run),
        environment=Environment(place.packages, place.hardware, place.code, place.sha256),
        arms=_arms(session, run),
        events=_events(session, run),
        reason=values.RunReason(run.purpose, run.ticket),
    )


def attempts(session: Session, ulid: str) -> tuple[Attempt, ...]:
    """The other runs of a run's suite with the same models, oldest first."""
    run = find_run(session, ulid)
    same = select(RunRow).where(RunRow.suite_artifact_id == run.suite_artifact_id, RunRow.id != run.id)
    models = _models(session, run)
    others = session.scalars(same.order_by(RunRow.ulid))
    return tuple(
        Attempt(other.ulid, values.RunStatus(other.status), other.exit_code)
        for other in others
        if _models(session, other) == models
    )


def _models(session: Session, run: RunRow) -> frozenset[tuple[str, int]]:
    rows = session.execute(
        select(RunArtifactRow.role, RunArtifactRow.artifact_id)
        .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
        .where(RunArtifactRow.run_id == run.id, ArtifactRow.kind.not_in(("suite", "policy")))
    )
    return frozenset((role, artifact) for role, artifact in rows)


def _artifacts(session: Session, run: RunRow) -> tuple[values.ArtifactRef, ...]:
    rows = session.execute(
        select(RunArtifactRow, ArtifactRow)
        .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
        .where(RunArtifactRow.run_id == run.id)
    )
    refs = (
        values.ArtifactRef(artifact.kind, link.role, link.name, link.revision, artifact.sha256, artifact.manifest)
        for link, artifact in rows
    )
    return tuple(sorted(refs, key=lambda ref: (ref.role, ref.name)))


def _events(session: Session, run: RunRow) -> tuple[values.StoredEvent, ...]:
    rows = session.scalars(select(RunEventRow).where(RunEventRow.run_id == run.id).order_by(RunEventRow.id))
    return tuple(values.StoredEvent(values.RunStatus(row.status), row.at, row.detail) for row in rows)


def _arms(session: Session, run: RunRow) -> tuple[values.StoredArm, ...]:
    rows = session.scalars(select(ArmRow).where(ArmRow.run_id == run.id).order_by(ArmRow.id)).all()
    return tuple(
        value_of(
            values.StoredArm,
            arm,
            kind=ArmKind(arm.kind),
            level=Level[arm.level],
            effective=Effective.from_json(arm.effective),
            counts=accounts.arm_counts(session, arm),
        )
        for arm in rows
    )
