"""Runs over time: verdicts, and the acceptance of the candidate arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.store.accounts import reports_steps
from audit.store.browse import run_list
from audit.store.browse.run_list import RunFilter
from audit.store.models import ArmRow, RequestRow, RunRow
from audit.store.writer import find_run
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class TrendRun:
    """One run with what it can be grouped by. `ended` is true if no request will be added to it."""

    ulid: str
    started_at: datetime
    suite: str
    model: str
    engine: str
    ended: bool
    verdicts: Mapping[Verdict, int]


@dataclass(frozen=True, slots=True)
class ArmSums:
    """Counts of one candidate arm."""

    arm: str
    drafted: int
    accepted: int
    output: int
    steps: int


def runs(session: Session, wanted: RunFilter, limit: int) -> tuple[TrendRun, ...]:
    """The newest runs, oldest first."""
    query = select(RunRow.id, *run_list.COLUMNS).where(*run_list.conditions(wanted))
    rows = session.execute(query.order_by(RunRow.id.desc()).limit(limit)).all()[::-1]
    return tuple(
        TrendRun(
            ulid=run.ulid,
            started_at=run.started_at,
            suite=run.suite,
            model=" + ".join(run.models) or "unknown",
            engine=" + ".join(run.engines) or "unknown",
            ended=row.exit_code is not None,
            verdicts=run.verdicts,
        )
        for row, run in zip(rows, run_list.listed(session, rows), strict=True)
    )


def arm_sums(session: Session, ulid: str) -> tuple[ArmSums, ...]:
    """The candidate arms of a run that drafted; an endpoint's are left out, because its record has no steps."""
    run = find_run(session, ulid)
    query = select(ArmRow.id, ArmRow.name, ArmRow.effective).where(
        ArmRow.run_id == run.id, ArmRow.kind == ArmKind.CANDIDATE.value
    )
    names = {row.id: row.name for row in session.execute(query) if reports_steps(Effective.from_json(row.effective))}
    sums = [
        func.sum(column)
        for column in (RequestRow.n_drafted, RequestRow.n_accepted, RequestRow.n_output, RequestRow.n_steps)
    ]
    grouped = select(RequestRow.arm_id, *sums).where(RequestRow.run_id == run.id, RequestRow.arm_id.in_(names))
    rows = session.execute(grouped.group_by(RequestRow.arm_id)).all()
    return tuple(ArmSums(names[arm], *map(int, counts)) for arm, *counts in rows if counts[0])
