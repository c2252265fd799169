"""Write functions of the store.

Functions take an open session inside a transaction and never commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.evidence.environment import Environment
from audit.evidence.verdicts import CheckResult
from audit.store import commitments, contents, integrity
from audit.store.canonical import jsonable, number, sha256_json, storable
from audit.store.erasable import ContentRow, FindingRow
from audit.store.models import (
    ArmRow,
    ArtifactRow,
    AttachmentRow,
    Base,
    CheckRow,
    CoverageRow,
    DecodeStepRow,
    EnvironmentRow,
    GateDecisionRow,
    JudgementRow,
    RequestRow,
    RunArtifactRow,
    RunEventRow,
    RunRow,
    TokenTraceRow,
)
from audit.store.ulid import new_ulid
from audit.store.values import (
    ArtifactRef,
    Attachment,
    NewArm,
    NewCheck,
    NewJudgement,
    NewRun,
    RunStatus,
    StoredDecision,
)

if TYPE_CHECKING:
    from engine.core.types import Generation
    from engine.record import trace as traces


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One generation with its arm, domain, case and sample."""

    arm: str
    domain: str
    case_id: str
    sample: int
    generation: Generation


def now() -> datetime:
    """The current moment in UTC."""
    return datetime.now(UTC)


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
        code_commit=start.code_commit,
    )
    session.add(run)
    session.flush()
    for used in start.artifacts:
        session.add(_link(run.id, used, _artifact(session, used)))
    _event(session, run, RunStatus.RUNNING, "started")
    session.flush()
    context = integrity.run_context(session, run)
    for arm in start.arms:
        session.add(_arm(run.id, arm, context))
    return run.ulid


def _artifact(session: Session, used: ArtifactRef) -> int:
    values = {
        "kind": used.kind,
        "name": used.name,
        "revision": used.revision,
        "sha256": used.sha256,
        "manifest": jsonable(used.manifest),
    }
    _insert_if_new(session, ArtifactRow, values)
    query = select(ArtifactRow.id).where(ArtifactRow.kind == used.kind, ArtifactRow.sha256 == used.sha256)
    return session.execute(query).scalar_one()


def _environment(session: Session, place: Environment) -> int:
    parts = {name: jsonable(getattr(place, name)) for name in ("packages", "hardware", "code")}
    _insert_if_new(session, EnvironmentRow, {"sha256": place.sha256, **parts})
    return session.execute(select(EnvironmentRow.id).where(EnvironmentRow.sha256 == place.sha256)).scalar_one()


def _insert_if_new(session: Session, table: type[Base], values: dict[str, Any]) -> None:
    """Insert a row unless a unique constraint already holds it; safe against concurrent writers."""
    if session.get_bind().dialect.name == "postgresql":
        # imported only for this kind of store: its modules would slow every command on an SQLite file
        from sqlalchemy.dialects import postgresql

        session.execute(postgresql.insert(table).values(**values).on_conflict_do_nothing())
    else:
        session.execute(sqlite.insert(table).values(**values).on_conflict_do_nothing())


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


def find_run(session: Session, ulid: str) -> RunRow:
    """The run with exactly that ULID.

    Raises:
        UserError: the store has no such run.
    """
    run = session.scalars(select(RunRow).where(RunRow.ulid == ulid)).one_or_none()
    if run is None:
        raise UserError(f"no run {ulid} in this store; see: audit list")
    return run


def find_arm(session: Session, run: RunRow, name: str) -> ArmRow:
    """A run's arm by name.

    Raises:
        UserError: the run has no such arm.
    """
    arm = session.scalars(select(ArmRow).where(ArmRow.run_id == run.id, ArmRow.name == name)).one_or_none()
    if arm is None:
        known = ", ".join(session.scalars(select(ArmRow.name).where(ArmRow.run_id == run.id).order_by(ArmRow.id)))
        raise UserError(f"run {run.ulid} has no arm {name!r}; it has: {known}")
    return arm


def add_requests(session: Session, ulid: str, requests: Sequence[NewRequest]) -> None:
    """Insert finished requests with their steps and traces.

    Raises:
        UserError: no such run or arm, or the run is not running.
        engine.core.errors.TraceError: a generation whose trace cannot be decoded.
    """
    run = find_run(session, ulid)
    if run.status != RunStatus.RUNNING:
        raise UserError(f"run {ulid} is {run.status}; requests can be added to a running one only")
    for new in requests:
        _add_request(session, run, find_arm(session, run, new.arm), new)


def _add_request(session: Session, run: RunRow, arm: ArmRow, new: NewRequest) -> None:
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from engine.record import envelope
    from engine.record import trace as traces

    trace = traces.decode(new.generation.trace)
    row = _request_row(run.id, arm.id, new, trace)
    steps = _step_values(trace, traces.steps_of(trace))
    digest = envelope.digest(new.generation.trace)
    content = _content(new, digest, row)
    row.record_hash = integrity.record_hash(arm.context_sha256, row, steps)
    session.add(row)
    session.flush()
    session.execute(insert(ContentRow).values(request_id=row.id, **content))
    if steps:
        columns = (*integrity.STEP_FIELDS, *integrity.VERSION_FIELDS)
        named = [dict(zip(columns, step, strict=True)) for step in steps]
        session.execute(insert(DecodeStepRow), [{"request_id": row.id, **step} for step in named])
    stored = {
        "format": int(envelope.version_of(new.generation.trace)[-1:]),
        "n_events": len(trace.token),
        "sha256": digest,
    }
    session.execute(insert(TokenTraceRow).values(request_id=row.id, payload=new.generation.trace, **stored))


def _request_row(run_id: int, arm_id: int, new: NewRequest, trace: traces.Trace) -> RequestRow:
    request, generation = new.generation.request, new.generation
    return RequestRow(
        run_id=run_id,
        arm_id=arm_id,
        case_id=new.case_id,
        sample=new.sample,
        domain=new.domain,
        sampling_sha256=sha256_json(request.sampling.document()),
        seed=str(request.sampling.seed),
        stream=str(request.stream),
        n_prompt=len(request.prompt),
        n_output=len(generation.tokens),
        n_steps=trace.steps,
        n_drafted=int(trace.n_drafted.sum(dtype="int64")),
        n_accepted=trace.n_accepted,
        finish_reason=generation.finish_reason.value,
        latency_us=int(generation.latency_us),
        record_version=integrity.RECORD_VERSION,
    )


def _content(new: NewRequest, trace_sha256: str, row: RequestRow) -> dict[str, Any]:
    """Columns of the request's content; sets the commitments of its row."""
    prompt, salt = [int(token) for token in new.generation.request.prompt], commitments.new_salt()
    content = {
        "salt": salt,
        "prompt_ids": prompt,
        "prompt_sha256": contents.tokens_hash(prompt),
        "output_sha256": contents.tokens_hash(new.generation.tokens),
        "text": storable(new.generation.text),
    }
    row.prompt_commitment = commitments.of_prompt(salt, prompt)
    row.output_commitment = commitments.of_output(salt, str(content["output_sha256"]), str(content["text"]))
    row.trace_commitment = commitments.of_trace(salt, trace_sha256)
    return content


def _step_values(trace: traces.Trace, views: Iterable[traces.StepView]) -> list[list[Any]]:
    """[S] rows of `integrity.STEP_FIELDS` and `integrity.VERSION_FIELDS`."""
    # imported with the first trace, as `engine.record.trace` is
    from engine.core.types import Role

    rows = []
    digests = {each.number: each.digest for each in trace.header.draft_versions}
    versions = trace.draft_version.tolist() or [None] * trace.steps
    for step in views:
        roles = trace.role[step.emitted]
        accepted, i = int((roles == Role.ACCEPTED).sum()), step.index
        counts = [int(trace.n_drafted[i]), accepted, int(trace.n_emitted[i])]
        version = [versions[i], digests.get(versions[i])]
        rows.append([i, step.position, *counts, int(trace.draft_us[i]), int(trace.verify_us[i]), *version])
    return rows


def set_status(session: Session, ulid: str, status: RunStatus, detail: str) -> None:
    """Change a run's status and add an event with the reason."""
    run = find_run(session, ulid)
    run.status = status.value
    _event(session, run, status, detail)


def finish_run(session: Session, ulid: str, status: RunStatus, exit_code: int) -> None:
    """Close a run: status, end, tokens, exit code and record root."""
    run = find_run(session, ulid)
    total = select(func.coalesce(func.sum(RequestRow.n_output), 0)).where(RequestRow.run_id == run.id)
    run.tokens = int(session.execute(total).scalar_one())
    run.record_root = integrity.root_of(integrity.stored_leaves(session, run.id))
    run.finished_at = now()
    run.exit_code = exit_code
    set_status(session, ulid, status, f"exit code {exit_code}")


def add_check(session: Session, ulid: str, check: NewCheck) -> None:
    """Insert a check's result; NaN becomes NULL in columns and null in JSON."""
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
    finding = _finding(result)
    row = CheckRow(
        run_id=run.id,
        arm_id=find_arm(session, run, check.arm).id,
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
    if finding is not None:
        session.execute(insert(FindingRow).values(check_result_id=row.id, **finding))
    if check.coverage:
        session.execute(insert(CoverageRow), [{"check_result_id": row.id, **asdict(each)} for each in check.coverage])


def _finding(result: CheckResult) -> dict[str, Any] | None:
    """Columns of the result's row of findings; None without any."""
    if not result.findings:
        return None
    quoting = _unquoted(result) != result.summary
    return {
        "salt": commitments.new_salt(),
        "summary": storable(result.summary) if quoting else None,
        "findings": [
            {**each, "message": storable(each["message"])} for each in (jsonable(found) for found in result.findings)
        ],
    }


def _unquoted(result: CheckResult) -> str:
    """The summary without the messages of findings, which may quote outputs."""
    summary = result.summary
    for message in sorted({found.message for found in result.findings if found.message}, key=len, reverse=True):
        summary = summary.replace(message, "(see the findings)")
    return summary


def _details(result: CheckResult) -> dict[str, Any]:
    """The details, with the detectable effect if the check has one."""
    found = {} if result.detectable is None else {"detectable": result.detectable}
    return {**result.details, **found}


def add_decision(session: Session, decision: StoredDecision) -> None:
    """Insert a gate's decision."""
    run_id = None if decision.run is None else find_run(session, decision.run).id
    session.add(
        GateDecisionRow(
            run_id=run_id,
            policy_sha256=decision.policy_sha256,
            policy=jsonable(decision.policy),
            decision=str(decision.decision),
            reasons=jsonable(decision.reasons),
            actor=decision.actor,
            created_at=decision.created_at,
        )
    )


def add_attachment(session: Session, attachment: Attachment) -> None:
    """Insert a binding of evidence to a report."""
    session.add(
        AttachmentRow(
            run_id=find_run(session, attachment.run).id,
            report_before=attachment.report_before,
            report_after=attachment.report_after,
            format=attachment.format,
            location=attachment.location,
            statement=jsonable(attachment.statement),
            created_at=attachment.created_at,
        )
    )
