"""The list of a run's requests, filtered and paged by the database, in the order of their cases.

A page begins after a request that the reader has seen. The filter of divergences compares digests of outputs, so it
cannot see a request whose content was erased.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, exists, false, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from audit.errors import UserError
from audit.evidence.records import ArmKind
from audit.store.base.values import RequestKey
from audit.store.reading.outcomes import latest_checks
from audit.store.sums.accounts import reports_steps
from audit.store.tables.content import ContentRow, FindingRow
from audit.store.tables.runs import ArmRow, RequestRow, RunRow, find_run
from audit.store.tables.verdicts import CheckRow
from engine.record.effective import Effective

MOST_FOUND: Final = 2000
"""Requests with findings that a page looks among; a check keeps far fewer findings."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """A reader's filter; an empty text is anything.

    case: beginning of the case's name. check: a check that has a finding at the request, or `any`. divergent: the
    output differs from a baseline's at the same sampling parameters and seed.
    """

    arm: str = ""
    domain: str = ""
    case: str = ""
    check: str = ""
    divergent: bool = False


ANY_CHECK: Final = "any"


@dataclass(frozen=True, slots=True)
class ListedRequest:
    """One line of the list; steps, drafted and accepted tokens are None for an endpoint. `checks` have findings here.

    row: the cursor.
    """

    row: int
    key: RequestKey
    domain: str
    prompt: int
    output: int
    steps: int | None
    drafted: int | None
    accepted: int | None
    finish_reason: str
    latency_us: int
    divergent: bool
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Some requests; `back` and `onward` are the cursors of the pages before and after, None at an end."""

    requests: tuple[ListedRequest, ...]
    back: int | None
    onward: int | None


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """Values to filter a run's requests by."""

    arms: tuple[str, ...]
    domains: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Arms:
    """The arms of a run by row: names, and whether the record holds steps."""

    names: Mapping[int, str]
    stepless: frozenset[int]
    baselines: tuple[int, ...]

    def row(self, name: str) -> int:
        """The row of an arm; raises UserError: no such arm."""
        for row, own in self.names.items():
            if own == name:
                return row
        raise UserError(f"the run has no arm {name[:80]!r}")


def page(session: Session, ulid: str, wanted: RequestFilter, cursor: int, *, back: bool, limit: int) -> RequestPage:
    """A page of at most `limit` requests, by case: those after the cursor or, with `back`, those before it.

    The cursor is the row of a request; 0 for the first page.

    Raises:
        UserError: no such run or arm.
    """
    run = find_run(session, ulid)
    arms, flagged = _arms(session, run), findings_of(session, run)
    if wanted.check and not any(wanted.check in (ANY_CHECK, *checks) for checks in flagged.values()):
        return RequestPage((), None, None)
    divergent = _divergent(arms.baselines)
    query = select(*COLUMNS, divergent.label("divergent")).where(*_conditions(run, wanted, arms, flagged, divergent))
    start = _start(session, run, cursor)
    if start is not None:
        query = query.where(start > KEYSET if back else start < KEYSET)
    upward = back and start is not None
    order = [column.desc() if upward else column.asc() for column in (RequestRow.case_id, RequestRow.id)]
    rows = session.execute(query.order_by(*order).limit(limit + 1)).all()
    more, rows = len(rows) > limit, rows[:limit]
    ordered = rows[::-1] if upward else rows
    if not ordered:
        return RequestPage((), None, None)
    before, after = (more, True) if upward else (start is not None, more)
    listed = tuple(_listed(row, arms, flagged) for row in ordered)
    return RequestPage(listed, ordered[0].id if before else None, ordered[-1].id if after else None)


KEYSET: Final = tuple_(RequestRow.case_id, RequestRow.id)
COLUMNS: Final = tuple(
    getattr(RequestRow, name)
    for name in (
        *("id", "arm_id", "case_id", "sample", "domain", "n_prompt", "n_output", "n_steps", "n_drafted", "n_accepted"),
        *("finish_reason", "latency_us"),
    )
)


def _start(session: Session, run: RunRow, cursor: int) -> Any:
    case = session.scalar(select(RequestRow.case_id).where(RequestRow.id == cursor, RequestRow.run_id == run.id))
    return None if case is None else tuple_(case, cursor)


def _arms(session: Session, run: RunRow) -> _Arms:
    rows = session.execute(
        select(ArmRow.id, ArmRow.name, ArmRow.kind, ArmRow.effective).where(ArmRow.run_id == run.id).order_by(ArmRow.id)
    ).all()
    return _Arms(
        names={row.id: row.name for row in rows},
        stepless=frozenset(row.id for row in rows if not reports_steps(Effective.from_json(row.effective))),
        baselines=tuple(row.id for row in rows if row.kind == ArmKind.BASELINE.value),
    )


def _conditions(
    run: RunRow,
    wanted: RequestFilter,
    arms: _Arms,
    flagged: Mapping[RequestKey, Sequence[str]],
    divergent: ColumnElement[bool],
) -> list[ColumnElement[bool]]:
    made = [RequestRow.run_id == run.id]
    if wanted.arm:
        made.append(RequestRow.arm_id == arms.row(wanted.arm))
    if wanted.domain:
        made.append(RequestRow.domain == wanted.domain)
    if wanted.case:
        made.append(RequestRow.case_id.startswith(wanted.case, autoescape=True))
    if wanted.check:
        names = [key for key, checks in flagged.items() if wanted.check in (ANY_CHECK, *checks)][:MOST_FOUND]
        rows = [(arms.row(key.arm), key.case_id, key.sample) for key in names]
        made.append(tuple_(RequestRow.arm_id, RequestRow.case_id, RequestRow.sample).in_(rows))
    if wanted.divergent:
        made.append(divergent)
    return made


def _divergent(baselines: Sequence[int]) -> ColumnElement[bool]:
    """The output differs from a baseline's at the same sampling parameters and seed."""
    other, ours, theirs = aliased(RequestRow), aliased(ContentRow), aliased(ContentRow)
    same = [
        and_(
            other.arm_id == arm,
            other.case_id == RequestRow.case_id,
            other.sample == RequestRow.sample,
            other.sampling_sha256 == RequestRow.sampling_sha256,
        )
        for arm in baselines
    ]
    joined = and_(ours.request_id == RequestRow.id, theirs.request_id == other.id)
    return and_(
        RequestRow.arm_id.not_in(baselines),
        exists().where(or_(false(), *same), joined, ours.output_sha256 != theirs.output_sha256),
    )


def _listed(row: Any, arms: _Arms, flagged: Mapping[RequestKey, Sequence[str]]) -> ListedRequest:
    counted = row.arm_id not in arms.stepless
    key = RequestKey(arms.names[row.arm_id], row.case_id, row.sample)
    return ListedRequest(
        row=row.id,
        key=key,
        domain=row.domain,
        prompt=row.n_prompt,
        output=row.n_output,
        steps=row.n_steps if counted else None,
        drafted=row.n_drafted if counted else None,
        accepted=row.n_accepted if counted else None,
        finish_reason=row.finish_reason,
        latency_us=row.latency_us,
        divergent=bool(row.divergent),
        checks=tuple(flagged.get(key, ())),
    )


def findings_of(session: Session, run: RunRow) -> dict[RequestKey, list[str]]:
    """The checks with a finding at each request, from the valid results."""
    query: Select[Any] = (
        select(ArmRow.name, CheckRow.name, FindingRow.findings)
        .join(CheckRow, CheckRow.id == FindingRow.check_result_id)
        .join(ArmRow, ArmRow.id == CheckRow.arm_id)
        .where(CheckRow.id.in_(latest_checks(run.id)))
    )
    flagged: dict[RequestKey, list[str]] = {}
    for arm, check, findings in session.execute(query):
        for finding in findings:
            key = request_key(arm, str(finding.get("request", "")))
            if key is not None and check not in flagged.setdefault(key, []):
                flagged[key].append(check)
    return flagged


def request_key(arm: str, name: str) -> RequestKey | None:
    """The request that a finding on an arm names, as CASE#SAMPLE or ARM/CASE#SAMPLE; None if it names none."""
    case, mark, sample = name.removeprefix(f"{arm}/").rpartition("#")
    return RequestKey(arm, case, int(sample)) if mark and sample.isdecimal() and len(sample) < 10 else None


def places(session: Session, ulid: str) -> RequestPlaces:
    """Values to filter a run's requests by. Raises UserError: no such run."""
    run = find_run(session, ulid)
    checks = {check for checks in findings_of(session, run).values() for check in checks}
    domains = session.scalars(select(RequestRow.domain).where(RequestRow.run_id == run.id).distinct())
    return RequestPlaces(tuple(_arms(session, run).names.values()), tuple(sorted(domains)), tuple(sorted(checks)))
