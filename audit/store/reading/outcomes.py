"""Read functions for what was concluded about a run: verdicts, coverage, gate decisions, attachments.

Functions take an open session.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, func, select
from sqlalchemy.orm import Session

from audit.evidence.records import Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store.base.values import Attachment, StoredCheck, StoredCoverage, StoredDecision, StoredJudgement
from audit.store.tables.content import FindingRow
from audit.store.tables.runs import ArmRow, EnvironmentRow, find_run, value_of
from audit.store.tables.verdicts import AttachmentRow, CheckRow, CoverageRow, GateDecisionRow, JudgementRow


def latest_checks(run_id: int | BindParameter[Any]) -> Any:
    """Ids of the last row of each arm and check; a later result supersedes."""
    return select(func.max(CheckRow.id)).where(CheckRow.run_id == run_id).group_by(CheckRow.arm_id, CheckRow.name)


def verdicts_of(session: Session, ids: Sequence[int]) -> dict[int, dict[Verdict, int]]:
    """The valid results of runs, counted by verdict."""
    valid = select(func.max(CheckRow.id)).where(CheckRow.run_id.in_(ids)).group_by(CheckRow.arm_id, CheckRow.name)
    query = select(CheckRow.run_id, CheckRow.verdict, func.count()).where(CheckRow.id.in_(valid))
    counts: dict[int, dict[Verdict, int]] = {}
    for run, verdict, count in session.execute(query.group_by(CheckRow.run_id, CheckRow.verdict)):
        counts.setdefault(run, {})[Verdict(verdict)] = count
    return counts


def checks(session: Session, ulid: str) -> tuple[StoredCheck, ...]:
    """The last result of each arm and check, arms in the suite's order, checks by name."""
    latest = latest_checks(find_run(session, ulid).id)
    rows = session.execute(
        select(CheckRow, ArmRow.name, FindingRow)
        .join(ArmRow, ArmRow.id == CheckRow.arm_id)
        .outerjoin(FindingRow, FindingRow.check_result_id == CheckRow.id)
        .where(CheckRow.id.in_(latest))
    ).all()
    ordered = sorted(rows, key=lambda row: (row[0].arm_id, row[0].name))
    return tuple(_check(*row) for row in ordered)


def _check(row: CheckRow, arm: str, result: FindingRow | None) -> StoredCheck:
    return value_of(
        StoredCheck,
        row,
        arm=arm,
        check=row.name,
        level=Level[row.level],
        verdict=Verdict(row.verdict),
        summary=row.summary if result is None or result.summary is None else result.summary,
        findings=() if result is None else tuple(Finding(**finding) for finding in result.findings),
        erased=row.n_findings if result is None else 0,
    )


def coverage(session: Session, ulid: str) -> tuple[StoredCoverage, ...]:
    """Coverage of each arm's and check's last result, arms in the suite's order, checks by name."""
    latest = latest_checks(find_run(session, ulid).id)
    rows = session.execute(
        select(CoverageRow, CheckRow.name, ArmRow.name)
        .join(CheckRow, CheckRow.id == CoverageRow.check_result_id)
        .join(ArmRow, ArmRow.id == CheckRow.arm_id)
        .where(CheckRow.id.in_(latest))
        .order_by(ArmRow.id, CheckRow.name, CoverageRow.situation)
    )
    return tuple(value_of(StoredCoverage, row, arm=arm, check=check) for row, check, arm in rows)


def judgements(session: Session, ulid: str) -> tuple[StoredJudgement, ...]:
    """The later judgements of a run, oldest first, numbered from 1."""
    rows = session.execute(
        select(JudgementRow, EnvironmentRow)
        .join(EnvironmentRow, EnvironmentRow.id == JudgementRow.environment_id)
        .where(JudgementRow.run_id == find_run(session, ulid).id)
        .order_by(JudgementRow.id)
    )
    return tuple(
        StoredJudgement(number, row.actor, row.created_at, place.code, place.packages)
        for number, (row, place) in enumerate(rows, start=1)
    )


def decisions(session: Session, ulid: str) -> tuple[StoredDecision, ...]:
    """The gate's decisions about a run, oldest first."""
    run = find_run(session, ulid)
    rows = session.scalars(select(GateDecisionRow).where(GateDecisionRow.run_id == run.id).order_by(GateDecisionRow.id))
    return tuple(as_decision(row, ulid) for row in rows)


def as_decision(row: GateDecisionRow, ulid: str) -> StoredDecision:
    """The decision of a row about a run."""
    return value_of(StoredDecision, row, run=ulid, reasons=tuple(row.reasons))


def attachments(session: Session, ulid: str) -> tuple[Attachment, ...]:
    """The reports that a run's evidence is bound to, oldest first."""
    run = find_run(session, ulid)
    rows = session.scalars(select(AttachmentRow).where(AttachmentRow.run_id == run.id).order_by(AttachmentRow.id))
    return tuple(value_of(Attachment, row, run=ulid) for row in rows)
