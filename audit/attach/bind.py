"""Bind a run's evidence to a report: the predicate, the report that carries it, the statement."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from audit.attach import REGISTRY, splice
from audit.attach.interface import MAX_REPORT_BYTES, ReportFormat
from audit.attach.statement import VERSION, Statement, digest
from audit.attach.subject import ModelComparison, compare_models, is_own_document
from audit.errors import CannotDecide, UserError
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.store import Attachment, RunStatus, Store, StoredCheck, StoredRun
from audit.text.documents import mistake, quoted, read_bytes
from audit.text.schema_errors import suggestion
from audit.text.staged_files import staged

FAILED: Final = 1
"""Exit code of a run with a broken claim."""
LISTED: Final = 3
"""Faults named in an error message."""


@dataclass(frozen=True, slots=True)
class AttachOrder:
    """The report to attach to, and the output paths. With `form` None the format is detected.

    `failed` accepts a run that failed; `differs` is the reason why the report may name another model than the run's.
    """

    report: Path
    out: Path
    statement: Path
    form: str | None = None
    replace: bool = False
    failed: bool = False
    differs: str | None = None


def attach(store: Store, name: str, order: AttachOrder, now: datetime) -> Statement:
    """Attach the run called `name` and record the attachment; both files are written, or neither.

    Raises:
        UserError: no such run, a run that failed, a report about another model, or one that cannot carry the evidence.
        CannotDecide: the run is unfinished or its record is not intact.
    """
    ulid = store.resolve(name)
    run = store.load_run(ulid)
    if run.status is not RunStatus.FINISHED or run.record_root is None or run.finished_at is None:
        raise CannotDecide(f"run {ulid} is {run.status}, not finished; there is no evidence to attach yet")
    if not store.verify_root(ulid):
        raise CannotDecide(f"run {ulid}: its record is not what it was when it finished; run the suite again")
    checks = store.checks(ulid)
    if not order.failed:
        _require_passed(run, checks)
    bound = _bound(order, run, checks)
    statement = bound.statement
    with staged({order.statement: statement.to_bytes(), order.out: bound.report}):
        store.add_attachment(
            Attachment(
                run=ulid,
                report_before=statement.before,
                report_after=statement.after,
                format=statement.predicate["report"]["format"],
                location=str(order.out.resolve()),
                statement=statement.to_json(),
                created_at=now,
            )
        )
    return statement


def _require_passed(run: StoredRun, checks: Sequence[StoredCheck]) -> None:
    """Refuse a run with a fault or with the exit code of one."""
    broken = [f"{check.check} of arm {check.arm}" for check in checks if check.verdict is Verdict.FAULT]
    if not broken and run.exit_code != FAILED:
        return
    named = ", ".join(broken[:LISTED]) + (f" and {len(broken) - LISTED} more" if len(broken) > LISTED else "")
    raise UserError(
        f"run {run.ulid} failed ({named or f'exit code {run.exit_code}'}); "
        "add --failed to attach the evidence of a failed run"
    )


@dataclass(frozen=True, slots=True)
class _Bound:
    report: bytes
    statement: Statement


def _bound(order: AttachOrder, run: StoredRun, checks: Sequence[StoredCheck]) -> _Bound:
    path = str(order.report)
    report = read_bytes(order.report, MAX_REPORT_BYTES)
    try:
        form = find_format(report, order.form)
        if form.carries(report):
            if not order.replace:
                raise mistake(path, None, "the report carries evidence already; add --replace to replace it")
            report = form.remove(report)
        facts = {"name": order.report.name, "format": form.name, "sha256": digest(report)}
        about = {
            "model": _model(order, compare_models(form.models_of(report), run)),
            "generated_by_run": is_own_document(splice.parse(_decoded(report)), run),
        }
        predicate = {**evidence_of(run, checks), **about, "report": facts, "tool": _tool()}
        changed = form.embed(report, predicate)
    except ValueError as error:
        raise mistake(path, None, f"cannot carry an attachment: {error}; name a JSON report") from error
    root = str(predicate["record_root"])
    return _Bound(changed, Statement(order.out.name, digest(changed), facts["sha256"], root, predicate))


def _model(order: AttachOrder, found: ModelComparison) -> dict[str, Any]:
    """The comparison as stated; refuses a report about another model without a reason."""
    names, own = ", ".join(found.report), ", ".join(found.run) or "not recorded"
    if found.agree is False and order.differs is None:
        raise mistake(
            str(order.report),
            None,
            f"the report names the model {names}, the run's target is {own}; "
            "attach a run of that model, or state why they differ with --model-differs REASON",
        )
    if found.agree and order.differs is not None:
        raise mistake(str(order.report), None, f"the report names {names} as the run does; leave out --model-differs")
    return {"report": list(found.report), "run": list(found.run), "agree": found.agree, "differs": order.differs}


def find_format(report: bytes, name: str | None) -> ReportFormat:
    """The format called `name`, or the first that recognises the report.

    Raises:
        ValueError: unknown format, or the report does not have it.
    """
    if name is not None and name not in REGISTRY:
        raise ValueError(f"unknown format {quoted(name)}; {suggestion(name, REGISTRY)}")
    value = splice.parse(_decoded(report))
    for each in REGISTRY if name is None else (name,):
        form = load_format(each)
        if form.recognises(value):
            return form
    raise ValueError("it is not a JSON object" if name is None else f"it is not of the format {name}")


def load_format(name: str) -> ReportFormat:
    """A registered format."""
    module, _, attribute = REGISTRY[name].partition(":")
    form: ReportFormat = getattr(importlib.import_module(module), attribute)
    return form


def _decoded(report: bytes) -> str:
    try:
        return report.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error


def evidence_of(run: StoredRun, checks: Sequence[StoredCheck], version: int = VERSION) -> dict[str, Any]:
    """The facts about a run in an attachment: the part of the predicate that the store can confirm later."""
    lossy = [arm.name for arm in run.arms if arm.kind is ArmKind.CANDIDATE and not arm.lossless]
    return {
        "version": version,
        **({"exit_code": run.exit_code} if version > 1 else {}),
        # only if present, so that statements older than this key stay verifiable
        **({"lossy": lossy} if lossy else {}),
        "run": run.ulid,
        "record_root": run.record_root,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
        "claims": _claims(checks),
        "checks": [
            {
                "arm": check.arm,
                "check": check.check,
                "claim": check.claim,
                "verdict": check.verdict.value,
                "level": check.level.name,
            }
            for check in checks
        ],
        "subjects": [{"role": each.role, "name": each.name, "sha256": each.sha256} for each in run.artifacts],
    }


def _claims(checks: Sequence[StoredCheck]) -> Mapping[str, Mapping[str, int]]:
    claims = sorted({check.claim for check in checks})
    counts = {claim: Counter(check.verdict.value for check in checks if check.claim == claim) for claim in claims}
    return {claim: dict(sorted(count.items())) for claim, count in counts.items()}


def _tool() -> dict[str, str]:
    try:
        return {"name": "specaudit", "version": metadata.version("specaudit")}
    except metadata.PackageNotFoundError:
        return {"name": "specaudit", "version": "unknown"}
