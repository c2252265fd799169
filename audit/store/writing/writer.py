"""Write functions of the store.

Functions take an open session inside a transaction and never commit.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from audit.evidence.environment import Environment
from audit.evidence.verdicts import CheckResult
from audit.store.base import commitments
from audit.store.base.canonical import jsonable, number, storable
from audit.store.base.ulid import new_ulid
from audit.store.base.values import (
    ArtifactRef,
    Attachment,
    NewArm,
    NewCheck,
    NewJudgement,
    NewRun,
    RunStatus,
    StoredDecision,
)
from audit.store.ledger import log
from audit.store.sums import sums
from audit.store.tables.content import FINDING, ErasureRow
from audit.store.tables.runs import (
    ArmRow,
    ArtifactRow,
    EnvironmentRow,
    RequestRow,
    RunArtifactRow,
    RunEventRow,
    RunRow,
    find_arm,
    find_run,
    now,
)
from audit.store.tables.verdicts import AttachmentRow, CheckRow, GateDecisionRow, JudgementRow
from audit.store.writing import contents, integrity


def begin_run(session: Session, start: NewRun) -> str:
    """Insert a run with its artifacts, environment and arms; returns its ULID."""
    suite = ArtifactRef("suite", "suite", start.suite_name, None, start.suite_sha256, start.suite_document)
    suite_id = _artifact(session, suite)
    run = RunRow(
        ulid=new_ulid(),
        suite_name=start.suite_name,
        suite_artifact_id=suite_id,
        environment_id=_environment(session, start.environment),
        config=jsonable({arm.name: arm.effective.to_json() for arm in start.arms}),
        status=RunStatus.RUNNING.value,
        started_at=now(),
        actor=start.actor,
        purpose=start.reason.purpose,
        ticket=start.reason.ticket,
        code_commit=start.code_commit,
    )
    session.add(run)
    session.flush()
    for used in start.artifacts:
        session.add(_link(run.id, used, _artifact(session, used)))
    _event(session, run, RunStatus.RUNNING, "started")
    session.flush()
    context = integrity.run_context(session, run)
    made = [_arm(run.id, arm, context) for arm in start.arms]
    session.add_all(made)
    session.flush()
    session.add_all(integrity.speculation_of(arm, start.environment.packages) for arm in made)
    return run.ulid


def _artifact(session: Session, used: ArtifactRef) -> int:
    values = {name: getattr(used, name) for name in ("kind", "name", "revision", "sha256")}
    return _id_of(session, ArtifactRow, {**values, "manifest": jsonable(used.manifest)}, ("kind", "sha256"))


def _environment(session: Session, place: Environment) -> int:
    parts = {name: jsonable(getattr(place, name)) for name in ("packages", "hardware", "code")}
    return _id_of(session, EnvironmentRow, {"sha256": place.sha256, **parts}, ("sha256",))


def _id_of(
    session: Session, table: type[ArtifactRow | EnvironmentRow], values: dict[str, Any], unique: Sequence[str]
) -> int:
    """The id of a row, which is inserted unless its unique columns are there. Safe against concurrent writers."""
    if session.get_bind().dialect.name == "postgresql":
        # imported only for this kind of store: its modules would slow every command on an SQLite file
        from sqlalchemy.dialects import postgresql

        statement: Any = postgresql.insert(table)
    else:
        statement = sqlite.insert(table)
    made = session.execute(statement.values(**values).on_conflict_do_nothing().returning(table.id)).first()
    query = select(table.id).where(*(getattr(table, name) == values[name] for name in unique))
    result = session.execute(query).scalar_one()
    log.note(session, table.__tablename__, [] if made is None else [(result,)])
    return result


def _link(run_id: int, used: ArtifactRef, artifact_id: int) -> RunArtifactRow:
    return RunArtifactRow(
        run_id=run_id, role=used.role, name=used.name, revision=used.revision, artifact_id=artifact_id
    )


def _arm(run_id: int, start: NewArm, context: dict[str, Any]) -> ArmRow:
    arm = ArmRow(
        run_id=run_id,
        name=start.name,
        kind=start.kind.value,
        level=start.level.name,
        spec=jsonable(start.spec),
        effective=jsonable(start.effective.to_json()),
        lossless=start.lossless,
    )
    arm.context_sha256 = integrity.context_hash(context, integrity.arm_context(arm))
    return arm


def _event(session: Session, run: RunRow, status: RunStatus, detail: str) -> None:
    session.add(RunEventRow(run_id=run.id, status=status.value, at=now(), detail=detail))


def set_status(session: Session, ulid: str, status: RunStatus, detail: str = "") -> None:
    """Change a run's status and add an event with the reason; sums of an earlier end no longer hold."""
    run = find_run(session, ulid)
    sums.drop(session, run)
    run.status = status.value
    _event(session, run, status, detail)


def finish_run(session: Session, ulid: str, status: RunStatus, exit_code: int, content_root: str | None) -> None:
    """Close a run: status, end, tokens, exit code, record root, content root and sums."""
    run = find_run(session, ulid)
    total = select(func.coalesce(func.sum(RequestRow.n_output), 0)).where(RequestRow.run_id == run.id)
    run.tokens = int(session.execute(total).scalar_one())
    run.record_root = integrity.root_of(integrity.stored_leaves(session, run.id))
    run.content_root = content_root
    run.finished_at = now()
    run.exit_code = exit_code
    set_status(session, ulid, status, f"exit code {exit_code}")
    sums.keep(session, run)


def add_check(session: Session, ulid: str, check: NewCheck) -> None:
    """Insert a check's result and what it examined; it supersedes an earlier one of the same arm and check.

    NaN becomes NULL in columns and null in JSON.
    """
    _add_check(session, find_run(session, ulid), check, None)


def add_judgement(session: Session, ulid: str, judgement: NewJudgement) -> None:
    """Insert a judgement with all its results."""
    run = find_run(session, ulid)
    row = JudgementRow(
        run_id=run.id,
        environment_id=_environment(session, judgement.environment),
        actor=judgement.actor,
        created_at=now(),
    )
    session.add(row)
    session.flush()
    for check in judgement.checks:
        _add_check(session, run, check, row.id)


def _add_check(session: Session, run: RunRow, check: NewCheck, judgement: int | None) -> None:
    result = check.result
    numbers = ("statistic", "p_value", "effect", "bound", "margin")
    finding, arm = _finding(result), find_arm(session, run, check.arm)
    row = CheckRow(
        run_id=run.id,
        arm_id=arm.id,
        name=check.name,
        claim=check.claim,
        verdict=result.verdict.value,
        level=check.level.name,
        n=int(result.n),
        summary=storable(_unquoted(result)),
        n_findings=len(result.findings),
        findings_commitment=finding and commitments.of_findings(**finding),
        details=jsonable(_details(result)),
        created_at=now(),
        judgement_id=judgement,
        **{name: number(getattr(result, name)) for name in numbers},
    )
    session.add(row)
    session.flush()
    if finding is not None and contents.withholds(arm.spec):
        shared: dict[str, Any] = {"run_id": run.id, "reason": contents.REASON, "actor": run.actor, "created_at": now()}
        session.add(ErasureRow(check_result_id=row.id, what=FINDING, **shared))
    elif finding is not None:
        log.insert_rows(session, "finding", [{"check_result_id": row.id, **finding}])
    log.insert_rows(session, "coverage", [{"check_result_id": row.id, **asdict(item)} for item in check.coverage])


def _finding(result: CheckResult) -> dict[str, Any] | None:
    """Columns of the result's row of findings; None without any."""
    if not result.findings:
        return None
    quoting = _unquoted(result) != result.summary
    return {
        "salt": commitments.new_salt(),
        "summary": storable(result.summary) if quoting else None,
        "findings": [
            {**item, "message": storable(item["message"])}
            for item in (jsonable(finding) for finding in result.findings)
        ],
    }


def _unquoted(result: CheckResult) -> str:
    """The summary without the messages of findings, which may quote outputs."""
    summary = result.summary
    for message in sorted({finding.message for finding in result.findings if finding.message}, key=len, reverse=True):
        summary = summary.replace(message, "(see the findings)")
    return summary


def _details(result: CheckResult) -> dict[str, Any]:
    """The details, with the detectable effect if the check has one."""
    outcome = {} if result.detectable is None else {"detectable": result.detectable}
    return {**result.details, **outcome}


def add_decision(session: Session, decision: StoredDecision) -> None:
    """Insert a gate's decision."""
    given = asdict(decision) | {"policy": jsonable(decision.policy), "reasons": jsonable(decision.reasons)}
    run, decided = given.pop("run"), str(given.pop("decision"))
    run_id = None if run is None else find_run(session, run).id
    session.add(GateDecisionRow(run_id=run_id, decision=decided, **given))


def add_attachment(session: Session, attachment: Attachment) -> None:
    """Insert a binding of evidence to a report."""
    given = asdict(attachment) | {"statement": jsonable(attachment.statement)}
    run = find_run(session, given.pop("run"))
    session.add(AttachmentRow(run_id=run.id, **given))
