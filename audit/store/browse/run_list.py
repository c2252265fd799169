"""The list of runs, filtered and paged by the database.

A page begins after a run that the reader has seen (keyset pagination), so a page costs the same wherever it is. Counts
of requests are left out: the database would count every request of every run on the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.store.base.values import RunStatus
from audit.store.reading.outcomes import verdicts_of
from audit.store.tables.content import ErasureRow
from audit.store.tables.runs import ArmRow, ArtifactRow, RunArtifactRow, RunEventRow, RunRow, find_run, value_of
from audit.store.tables.verdicts import AttachmentRow, AttestationRow, CheckRow, GateDecisionRow, JudgementRow

MODELS: Final = ("target", "draft")
"""Kinds of artifacts that a reader looks for."""


class RunEnd(StrEnum):
    """How a run ended, in the words of its exit code."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    OPEN = "open"
    """It has not ended, or was interrupted."""


EXIT_CODES: Final[Mapping[int, RunEnd]] = {0: RunEnd.PASS, 1: RunEnd.FAIL, 3: RunEnd.UNDECIDED}


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A reader's filter; an empty text or None is anything.

    suite, actor: part of the name, in any case. model: part of a target's or draft's name, or the beginning of its
    digest. engine: the backend of an arm. verdict: of a valid result. since, until: days of the start in UTC, both
    included.
    """

    suite: str = ""
    model: str = ""
    engine: str = ""
    actor: str = ""
    end: RunEnd | None = None
    verdict: Verdict | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One line of the list. `decision` is the gate's newest."""

    ulid: str
    suite: str
    status: RunStatus
    end: RunEnd
    started_at: datetime
    actor: str
    tokens: int | None
    models: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    verdicts: Mapping[Verdict, int] = field(default_factory=dict)
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, newest first; `newer` and `older` are the cursors of the next pages, None at an end."""

    runs: tuple[ListedRun, ...]
    newer: str | None
    older: str | None


@dataclass(frozen=True, slots=True)
class RunNames:
    """Names that runs have."""

    suites: tuple[str, ...]
    models: tuple[str, ...]
    actors: tuple[str, ...]


def page(session: Session, wanted: RunFilter, cursor: str, *, newer: bool, limit: int) -> RunPage:
    """A page of at most `limit` runs, newest first: those before the cursor or, with `newer`, those after it.

    The cursor is a run's ULID; empty for the newest runs.
    """
    query = select(RunRow.id, *COLUMNS).where(*conditions(wanted))
    start = session.scalar(select(RunRow.id).where(RunRow.ulid == cursor)) if cursor else None
    if start is not None:
        query = query.where(RunRow.id > start if newer else RunRow.id < start)
    upward = newer and start is not None
    rows = session.execute(query.order_by(RunRow.id.asc() if upward else RunRow.id.desc()).limit(limit + 1)).all()
    more, rows = len(rows) > limit, rows[:limit]
    ordered = rows[::-1] if upward else rows
    if not ordered:
        return RunPage((), None, None)
    first, last = ordered[0].ulid, ordered[-1].ulid
    before, after = (more, True) if upward else (start is not None, more)
    return RunPage(listed(session, ordered), first if before else None, last if after else None)


COLUMNS: Final = (
    RunRow.ulid,
    RunRow.suite_name,
    RunRow.status,
    RunRow.started_at,
    RunRow.actor,
    RunRow.tokens,
    RunRow.exit_code,
)


def conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    """The filter as conditions on the rows of `run`."""
    made: list[ColumnElement[bool]] = []
    if wanted.suite:
        made.append(RunRow.suite_name.icontains(wanted.suite, autoescape=True))
    if wanted.actor:
        made.append(RunRow.actor.icontains(wanted.actor, autoescape=True))
    if wanted.since is not None:
        made.append(RunRow.started_at >= _midnight(wanted.since))
    if wanted.until is not None and wanted.until < date.max:
        made.append(RunRow.started_at < _midnight(wanted.until + timedelta(days=1)))
    if wanted.end is not None:
        codes = [code for code, end in EXIT_CODES.items() if end is wanted.end]
        made.append(RunRow.exit_code.in_(codes) if codes else RunRow.exit_code.is_(None))
    if wanted.model:
        made.append(_uses(wanted.model))
    if wanted.engine:
        of_run = ArmRow.run_id == RunRow.id
        made.append(exists().where(of_run, ArmRow.effective["backend"].as_string() == wanted.engine))
    if wanted.verdict is not None:
        made.append(_has(wanted.verdict))
    return made


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _uses(model: str) -> ColumnElement[bool]:
    digest = model.lower().removeprefix("sha256:")
    named = RunArtifactRow.name.icontains(model, autoescape=True)
    same = or_(named, ArtifactRow.sha256.startswith(digest, autoescape=True))
    joined = and_(RunArtifactRow.run_id == RunRow.id, ArtifactRow.id == RunArtifactRow.artifact_id)
    return exists().where(joined, ArtifactRow.kind.in_(MODELS), same)


def _has(verdict: Verdict) -> ColumnElement[bool]:
    """A result of that verdict that no later one of the same arm and check supersedes."""
    result, later = aliased(CheckRow), aliased(CheckRow)
    superseded = exists().where(
        later.run_id == result.run_id, later.arm_id == result.arm_id, later.name == result.name, later.id > result.id
    )
    return exists().where(result.run_id == RunRow.id, result.verdict == verdict.value, ~superseded)


def listed(session: Session, rows: Sequence[Any]) -> tuple[ListedRun, ...]:
    """Rows of `run`, with what other tables say of them."""
    ids = [row.id for row in rows]
    models, engines = _models(session, ids), _engines(session, ids)
    verdicts, decisions = verdicts_of(session, ids), _decisions(session, ids)
    return tuple(
        value_of(
            ListedRun,
            row,
            suite=row.suite_name,
            status=RunStatus(row.status),
            end=EXIT_CODES.get(row.exit_code, RunEnd.OPEN),
            models=tuple(models.get(row.id, ())),
            engines=tuple(engines.get(row.id, ())),
            verdicts=verdicts.get(row.id, {}),
            decision=decisions.get(row.id),
        )
        for row in rows
    )


def _models(session: Session, ids: Sequence[int]) -> dict[int, list[str]]:
    query = (
        select(RunArtifactRow.run_id, RunArtifactRow.name)
        .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
        .where(RunArtifactRow.run_id.in_(ids), ArtifactRow.kind.in_(MODELS))
        .order_by(RunArtifactRow.run_id, ArtifactRow.kind.desc(), RunArtifactRow.role)
    )
    return _grouped(session, query)


def _engines(session: Session, ids: Sequence[int]) -> dict[int, list[str]]:
    backend = ArmRow.effective["backend"].as_string()
    query = select(ArmRow.run_id, backend).where(ArmRow.run_id.in_(ids), backend.is_not(None))
    return _grouped(session, query.where(ArmRow.kind == ArmKind.CANDIDATE.value).distinct())


def _decisions(session: Session, ids: Sequence[int]) -> dict[int, str]:
    newest = select(func.max(GateDecisionRow.id)).where(GateDecisionRow.run_id.in_(ids))
    newest = newest.group_by(GateDecisionRow.run_id)
    query = select(GateDecisionRow.run_id, GateDecisionRow.decision).where(GateDecisionRow.id.in_(newest))
    return {run: decision for run, decision in session.execute(query) if run is not None}


def _grouped(session: Session, query: Select[int, str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for run, name in session.execute(query):
        names = grouped.setdefault(run, [])
        if name not in names:
            names.append(name)
    return grouped


def names(session: Session, limit: int) -> RunNames:
    """Names to choose from, at most `limit` of each kind."""
    used = select(RunArtifactRow.name).join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
    used = used.where(ArtifactRow.kind.in_(MODELS))
    queries = (select(RunRow.suite_name), used, select(RunRow.actor))
    suites, models, actors = (
        tuple(session.scalars(query.distinct().order_by(query.selected_columns[0]).limit(limit))) for query in queries
    )
    return RunNames(suites, models, actors)


def version_of(session: Session, ulid: str) -> str:
    """A text that changes whenever something but a request is added to a run or erased, or its number of requests does.

    Raises:
        UserError: no such run.
    """
    run = find_run(session, ulid)
    tables = (RunEventRow, CheckRow, JudgementRow, GateDecisionRow, AttachmentRow, AttestationRow, ErasureRow)
    newest = [session.scalar(select(func.max(table.id)).where(table.run_id == run.id)) for table in tables]
    return "/".join(map(str, (run.ulid, run.status, run.exit_code, *newest)))
