"""Runs over time: verdicts, and the acceptance of the candidate arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.store.browse import run_list
from audit.store.browse.run_list import RunFilter
from audit.store.sums import sums
from audit.store.sums.accounts import reports_steps
from audit.store.sums.sums import DomainCounts
from audit.store.tables.runs import ArmRow, RunRow, find_run, value_of
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
        value_of(
            TrendRun,
            run,
            model=" + ".join(run.models) or "unknown",
            engine=" + ".join(run.engines) or "unknown",
            ended=row.exit_code is not None,
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
    kept = sums.stored(session, run)
    counts = sums.domains(session, ulid) if kept is None else kept.domains
    made = (_arm_sums(name, [one for one in counts if one.arm == name]) for _, name in sorted(names.items()))
    return tuple(one for one in made if one.drafted)


def _arm_sums(arm: str, domains: Sequence[DomainCounts]) -> ArmSums:
    return ArmSums(
        arm,
        drafted=sum(one.drafted or 0 for one in domains),
        accepted=sum(one.accepted or 0 for one in domains),
        output=sum(one.output for one in domains),
        steps=sum(one.steps or 0 for one in domains),
    )
