"""Erase the content of requests and findings, with a row on record for each erasure.

The evidence keeps its commitments, so no hash breaks. Functions take an open session; `shred` afterwards removes the
bytes from the database's files. Cannot reach: backups, exports, reports, and copies that a file system keeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.store.base.values import RequestKey, RunStatus, requests_named
from audit.store.tables.content import CONTENT, FINDING, ContentRow, ErasureRow, FindingRow, ToolEventRow
from audit.store.tables.runs import ArmRow, RequestRow, RequestTokensRow, RunRow, TokenTraceRow, find_run, now
from audit.store.tables.verdicts import CheckRow
from audit.store.writing.contents import REASON

PARTS: Final = (ContentRow, RequestTokensRow, TokenTraceRow, ToolEventRow)
"""The content of a request."""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """Rows to delete in one run: `requests` and `findings` are rows of the database."""

    run: str
    requests: tuple[int, ...]
    findings: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """True if nothing is left to erase."""
        return not self.requests and not self.findings


@dataclass(frozen=True, slots=True)
class StoredErasure:
    """One erasure of a run: when, by whom, why, and the numbers of requests and results."""

    at: datetime
    actor: str
    reason: str
    requests: int
    results: int


def plan(session: Session, ulid: str, names: Sequence[str] = ()) -> ErasurePlan:
    """Plans an erasure in a run: the named requests and all findings that may quote them, or all of both.

    Raises:
        UserError: the run still runs, or has no request of that name.
    """
    run = find_run(session, ulid)
    if run.status == RunStatus.RUNNING:
        raise UserError(f"run {ulid} is running; erase its content when it has ended")
    rows = _requests(session, run)
    keys = sorted(rows)
    chosen = {key for name in names for key in requests_named(ulid, keys, name)} if names else set(keys)
    kept = {number for part in PARTS for number in session.scalars(select(part.request_id))}
    outcome = select(FindingRow).join(CheckRow, CheckRow.id == FindingRow.check_result_id)
    results = session.scalars(outcome.where(CheckRow.run_id == run.id).order_by(FindingRow.check_result_id))
    return ErasurePlan(
        ulid,
        tuple(rows[key] for key in keys if key in chosen and rows[key] in kept),
        tuple(row.check_result_id for row in results if not names or _may_quote(row, chosen, keys)),
    )


def _requests(session: Session, run: RunRow) -> dict[RequestKey, int]:
    query = select(ArmRow.name, RequestRow.case_id, RequestRow.sample, RequestRow.id)
    rows = session.execute(query.join(ArmRow, ArmRow.id == RequestRow.arm_id).where(RequestRow.run_id == run.id))
    return {RequestKey(*row[:3]): row[3] for row in rows}


def _may_quote(row: FindingRow, chosen: set[RequestKey], keys: Sequence[RequestKey]) -> bool:
    """True if a finding names a chosen request, or none that the run has: then it may be about any of them."""
    wanted = {key.short for key in chosen}
    known = {name for key in keys for name in (key.short, key.name)}
    for finding in row.findings:
        request, message = str(finding["request"]), str(finding["message"])
        if request not in known or any(name in request or name in message for name in wanted):
            return True
    return False


def older_than(session: Session, before: datetime) -> tuple[str, ...]:
    """The ended runs that started before a moment, oldest first."""
    query = select(RunRow.ulid).where(RunRow.started_at < before, RunRow.status != RunStatus.RUNNING.value)
    return tuple(session.scalars(query.order_by(RunRow.id)))


def erase_all(session: Session, plans: Sequence[ErasurePlan], reason: str, actor: str) -> None:
    """Delete the rows of the plans and put the erasures on record, in the caller's transaction."""
    if session.get_bind().dialect.name == "sqlite":
        session.connection().exec_driver_sql("PRAGMA secure_delete = ON")
    for other in plans:
        _erase(session, other, reason, actor)


def _erase(session: Session, planned: ErasurePlan, reason: str, actor: str) -> None:
    run = find_run(session, planned.run)
    shared: dict[str, Any] = {"run_id": run.id, "reason": reason, "actor": actor, "created_at": now()}
    # as mapped rows, which the log notes, and before the deletions, which the triggers allow only then
    session.add_all(ErasureRow(request_id=request, what=CONTENT, **shared) for request in planned.requests)
    session.add_all(ErasureRow(check_result_id=finding, what=FINDING, **shared) for finding in planned.findings)
    session.flush()
    for other in planned.requests:
        for part in PARTS:
            session.execute(delete(part).where(part.request_id == other))
    for other in planned.findings:
        session.execute(delete(FindingRow).where(FindingRow.check_result_id == other))


def erasures(session: Session, ulid: str) -> tuple[StoredErasure, ...]:
    """The erasures of a run, oldest first; none for content that was never written."""
    shared = (ErasureRow.created_at, ErasureRow.actor, ErasureRow.reason)
    counts = (func.count(ErasureRow.request_id), func.count(ErasureRow.check_result_id))
    query = select(*shared, *counts).where(ErasureRow.run_id == find_run(session, ulid).id, ErasureRow.reason != REASON)
    rows = session.execute(query.group_by(*shared).order_by(func.min(ErasureRow.id)))
    return tuple(StoredErasure(*row) for row in rows)


def count(session: Session, *, never_written: bool = False) -> int:
    """The number of requests in the store whose content was erased, or was never written."""
    withheld = ErasureRow.reason == REASON
    query = select(func.count(func.distinct(ErasureRow.request_id))).where(withheld if never_written else ~withheld)
    return session.execute(query).scalar_one()


def shred(engine: Engine) -> None:
    """Rewrite the files of the database, so that they hold no erased bytes.

    Raises:
        CannotDecide: another process reads the SQLite file, so its write-ahead log cannot be emptied yet.
    """
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("VACUUM (FULL) content, request_tokens, token_trace, tool_event, finding")
            return
    driver = engine.raw_connection()
    try:
        cursor = driver.cursor()
        cursor.execute("VACUUM")
        busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        driver.close()
    if busy:
        raise CannotDecide(
            "erased, but another process reads the store, so erased bytes may remain in its log; once it has ended, "
            "erase again"
        )
