"""Bind a run's evidence to a report: the predicate, the report that carries it, the statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from audit.attach import splice
from audit.attach.interface import MAX_REPORT_BYTES, ReportFormat, find_format, pointer
from audit.attach.statement import VERSION, Statement, digest, make_folder, sidecar_path, statement_path, with_line
from audit.attach.subject import ModelComparison, compare_models, is_own_document
from audit.attest.facts import tool
from audit.attest.signing import stored
from audit.attest.statement import SignedStatement, sign
from audit.errors import CannotDecide, UserError
from audit.evidence.verdicts import Verdict
from audit.store import Attachment, RunStatus, Store, StoredCheck, StoredRun
from audit.store.base.canonical import named
from audit.store.base.keys import PrivateKey
from audit.text.documents import mistake, read_bytes
from audit.text.staged_files import staged

FAILED: Final = 1
"""Exit code of a run with a broken claim."""
LISTED: Final = 3
"""Faults named in an error message."""


@dataclass(frozen=True, slots=True)
class AttachOrder:
    """The report to attach to, and the output paths. With `form` None the format is detected.

    `failed` accepts a run that failed; `differs` is the reason why the report may name another model than the run's.
    With `keys` the statement is signed, any file is accepted, and further runs may be attached to one report.
    `alone` leaves the report as it is, so that the statement alone binds it.
    """

    report: Path
    out: Path
    statement: Path | None = None
    form: str | None = None
    replace: bool = False
    failed: bool = False
    differs: str | None = None
    keys: tuple[PrivateKey, ...] = ()
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """The statement, the path of the report that it binds, and its own."""

    statement: Statement
    report: Path
    place: Path


def attach(store: Store, name: str, order: AttachOrder, now: datetime) -> Attached:
    """Attach the run called `name` and record the attachment; both files are written, or neither.

    Raises:
        UserError: no such run, a run that failed, a report about another model, or one that cannot carry the evidence.
        CannotDecide: the run is unfinished or its record is not intact.
    """
    bound = _bound(order, *attachable(store, name, failed=order.failed))
    statement = bound.statement
    signed = sign(statement.in_toto(), order.keys) if order.keys else None
    place = order.statement or (sidecar_path if order.keys else statement_path)(bound.path)
    _refuse_overwriting(order, bound, place)
    contents = {place: statement.to_bytes() if signed is None else _bundle(place, signed, order)}
    if bound.changed:
        contents[bound.path] = bound.report
    with staged(contents):
        record(store, statement, str(bound.path.resolve()), signed, now)
    return Attached(statement, bound.path, place)


def _bundle(place: Path, signed: SignedStatement, order: AttachOrder) -> bytes:
    if order.statement is None:
        make_folder(place)
    return with_line(place, signed, replace=order.replace)


def _refuse_overwriting(order: AttachOrder, bound: _Bound, place: Path) -> None:
    """Refuse to overwrite a file, except the report itself when it is the destination."""
    if place.resolve() in (order.report.resolve(), bound.path.resolve()):
        raise mistake(str(place), None, "the statement needs a file of its own; change --statement")
    written = [bound.path] if bound.changed else []
    for path in written if order.keys else (*written, place):
        if path.exists() and path != order.report and not order.replace:
            raise mistake(str(path), None, "the file exists; choose another name or add --replace")


def record(store: Store, statement: Statement, place: str, signed: SignedStatement | None, now: datetime) -> None:
    """Record an attachment and its signed statement."""
    run = str(statement.predicate["run"])
    form = str(statement.predicate["report"]["format"])
    row = Attachment(run, statement.before, statement.after, form, place, statement.to_json(), now)
    if signed is not None:
        store.attestations.add([stored(signed, run, now)])
    store.add_attachment(row)


def attachable(store: Store, name: str, *, failed: bool) -> tuple[StoredRun, tuple[StoredCheck, ...]]:
    """The run called `name`, whose record is intact, with its verdicts; with `failed` also one that failed.

    Raises:
        UserError: no such run, or it failed.
        CannotDecide: it is unfinished or its record is not intact.
    """
    ulid = store.resolve(name)
    run = store.load_run(ulid)
    if run.status is not RunStatus.FINISHED or run.record_root is None or run.finished_at is None:
        raise CannotDecide(f"run {ulid} is {run.status}, not finished; there is no evidence to attach yet")
    if not store.verify_root(ulid):
        raise CannotDecide(f"run {ulid}: its record is not what it was when it finished; run the suite again")
    checks = store.checks(ulid)
    if not failed:
        _require_passed(run, checks)
    return run, checks


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
    """The report to write, if it `changed`, and where it is afterwards."""

    report: bytes
    statement: Statement
    path: Path
    changed: bool


def _bound(order: AttachOrder, run: StoredRun, checks: Sequence[StoredCheck]) -> _Bound:
    path = str(order.report)
    report = read_bytes(order.report, MAX_REPORT_BYTES)
    try:
        form = find_format(order.report.name, report, order.form, anything=bool(order.keys))
        report, embeds = _prepared(form, report, order)
        predicate = {
            **evidence_of(run, checks),
            "model": model_of(order, compare_models(form.models_of(report), run)),
            "generated_by_run": _is_own(report, run),
            "report": {"name": order.report.name, "format": form.name, "sha256": digest(report)},
            "tool": tool(),
        }
        changed = form.embed(report, predicate if form.whole else pointer(predicate)) if embeds else report
    except ValueError as error:
        advice = (
            "add --sidecar to leave it as it is" if order.keys else "name a JSON report, or sign any file with --key"
        )
        raise mistake(path, None, f"cannot carry an attachment: {error}; {advice}") from error
    place = order.out if embeds else order.report
    statement = Statement(place.name, digest(changed), digest(report), str(predicate["record_root"]), predicate)
    return _Bound(changed, statement, place, embeds)


def _prepared(form: ReportFormat, report: bytes, order: AttachOrder) -> tuple[bytes, bool]:
    """The report to attach to, and whether the evidence goes into it.

    Evidence that it carries already stays if the statement is signed.
    """
    if not form.carrying or form.extract(report) is None:
        return report, form.carrying and not order.alone
    if order.replace:
        bare = form.remove(report)
        if bare is None:
            raise ValueError(f"the format {form.name} cannot be restored; attach to the original file")
        return bare, not order.alone
    if order.keys:
        return report, False
    raise mistake(str(order.report), None, "the report carries evidence already; add --replace to replace it")


def _is_own(report: bytes, run: StoredRun) -> bool:
    try:
        return is_own_document(splice.parse(report.decode("utf-8")), run)
    except ValueError:
        return False


def model_of(order: AttachOrder, comparison: ModelComparison) -> dict[str, Any]:
    """The comparison as stated; refuses a report about another model without a reason."""
    names, own = ", ".join(comparison.report), ", ".join(comparison.run) or "not recorded"
    if comparison.agree is False and order.differs is None:
        raise mistake(
            str(order.report),
            None,
            f"the report names the model {names}, the run's target is {own}; "
            "attach a run of that model, or state why they differ with --model-differs REASON",
        )
    if comparison.agree and order.differs is not None:
        raise mistake(str(order.report), None, f"the report names {names} as the run does; leave out --model-differs")
    return {**named(comparison, "report", "run", "agree"), "differs": order.differs}


def evidence_of(run: StoredRun, checks: Sequence[StoredCheck]) -> dict[str, Any]:
    """The facts about a run in an attachment: the part of the predicate that the store can confirm later."""
    lossy = [arm.name for arm in run.candidates if not arm.lossless]
    return {
        "version": VERSION,
        "exit_code": run.exit_code,
        **({"lossy": lossy} if lossy else {}),
        "run": run.ulid,
        **named(run, "record_root", "finished_at"),
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
        "claims": _claims(checks),
        "checks": [named(check, "arm", "check", "claim", "verdict", "level") for check in checks],
        "subjects": [named(artifact, "role", "name", "sha256") for artifact in run.artifacts],
    }


def _claims(checks: Sequence[StoredCheck]) -> Mapping[str, Mapping[str, int]]:
    claims = sorted({check.claim for check in checks})
    counts = {claim: Counter(check.verdict.value for check in checks if check.claim == claim) for claim in claims}
    return {claim: dict(sorted(count.items())) for claim, count in counts.items()}
