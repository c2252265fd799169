"""Read functions of the store.

Functions take an open session. This module decodes traces and checks them against
their stored digests; an arm keeps no trace in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import Environment
from audit.evidence.records import ArmKind, ArmRecord, LazyRequests, Level, RequestRecord
from audit.evidence.verdicts import Verdict
from audit.store import accounts, contents, integrity, withheld
from audit.store.erasable import ContentRow
from audit.store.models import (
    ArmRow,
    ArtifactRow,
    CheckRow,
    EnvironmentRow,
    RequestRow,
    RunArtifactRow,
    RunEventRow,
    RunRow,
    TokenTraceRow,
)
from audit.store.outcomes import latest_checks
from audit.store.ulid import ALPHABET
from audit.store.values import (
    ArtifactRef,
    RequestKey,
    RunReason,
    RunStatus,
    RunSummary,
    StoredArm,
    StoredEvent,
    StoredRun,
)
from audit.store.withheld import WithheldContent
from audit.store.writer import find_arm, find_run
from engine.core.errors import TraceError
from engine.record.effective import Effective

if TYPE_CHECKING:
    from engine.core.types import FinishReason
    from engine.record import trace as traces

SUGGESTED: Final = 3
"""Number of runs named in an error message."""


def resolve(session: Session, name: str) -> str:
    """A run's ULID from `latest` or a unique prefix.

    Raises:
        UserError: no run or several runs match; the message lists suggestions.
    """
    newest = select(RunRow.ulid).order_by(RunRow.id.desc())
    if name == "latest":
        found = session.scalars(newest.limit(1)).one_or_none()
        if found is None:
            raise UserError("the store has no runs yet; make one: audit run SUITE")
        return found
    prefix = name.upper()
    fits: list[str] = []
    if prefix and set(prefix) <= set(ALPHABET):
        fits = list(session.scalars(newest.where(RunRow.ulid.startswith(prefix)).limit(SUGGESTED + 1)))
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UserError(f"run {name!r} is ambiguous; it may be {_listed(fits)}")
    raise UserError(_no_run(name, list(session.scalars(newest.limit(SUGGESTED)))))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SUGGESTED]) + (", ..." if len(names) > SUGGESTED else "")


def _no_run(name: str, newest: list[str]) -> str:
    if not newest:
        return f"no run {name!r}: the store has no runs yet; make one: audit run SUITE"
    return f"no run begins with {name!r}; the newest are {_listed(newest)} (see: audit list)"


def run_status(session: Session, ulid: str) -> RunStatus:
    """The status of a run."""
    return RunStatus(find_run(session, ulid).status)


def finished(session: Session, ulid: str) -> frozenset[RequestKey]:
    """The finished requests of a run."""
    return frozenset(
        RequestKey(leaf.arm, leaf.case_id, leaf.sample)
        for leaf in integrity.stored_leaves(session, find_run(session, ulid).id)
    )


def list_runs(session: Session, limit: int) -> tuple[RunSummary, ...]:
    """The runs, newest first."""
    runs = session.scalars(select(RunRow).order_by(RunRow.id.desc()).limit(limit)).all()
    return tuple(_summary(session, run) for run in runs)


def _summary(session: Session, run: RunRow) -> RunSummary:
    latest = latest_checks(run.id).subquery()
    verdicts = session.execute(
        select(CheckRow.verdict, func.count()).where(CheckRow.id.in_(select(latest))).group_by(CheckRow.verdict)
    )
    return RunSummary(
        ulid=run.ulid,
        suite_name=run.suite_name,
        status=RunStatus(run.status),
        started_at=run.started_at,
        finished_at=run.finished_at,
        arms=_count(session, ArmRow, run),
        requests=_count(session, RequestRow, run),
        tokens=run.tokens,
        verdicts={Verdict(verdict): count for verdict, count in verdicts},
        exit_code=run.exit_code,
    )


def _count(session: Session, table: type[ArmRow] | type[RequestRow], run: RunRow) -> int:
    return session.execute(select(func.count()).select_from(table).where(table.run_id == run.id)).scalar_one()


def load_run(session: Session, ulid: str) -> StoredRun:
    """A run without its requests."""
    run = find_run(session, ulid)
    suite = session.get_one(ArtifactRow, run.suite_artifact_id)
    place = session.get_one(EnvironmentRow, run.environment_id)
    return StoredRun(
        ulid=run.ulid,
        suite_name=run.suite_name,
        suite_sha256=suite.sha256,
        suite_document=suite.manifest,
        status=RunStatus(run.status),
        started_at=run.started_at,
        finished_at=run.finished_at,
        actor=run.actor,
        code_commit=run.code_commit,
        artifacts=_artifacts(session, run),
        environment=Environment(place.packages, place.hardware, place.code, place.sha256),
        arms=_arms(session, run),
        events=_events(session, run),
        tokens=run.tokens,
        record_root=run.record_root,
        content_root=run.content_root,
        exit_code=run.exit_code,
        reason=RunReason(run.purpose, run.ticket),
    )


def _artifacts(session: Session, run: RunRow) -> tuple[ArtifactRef, ...]:
    rows = session.execute(
        select(RunArtifactRow, ArtifactRow)
        .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
        .where(RunArtifactRow.run_id == run.id)
    )
    refs = (
        ArtifactRef(artifact.kind, link.role, link.name, link.revision, artifact.sha256, artifact.manifest)
        for link, artifact in rows
    )
    return tuple(sorted(refs, key=lambda ref: (ref.role, ref.name)))


def _events(session: Session, run: RunRow) -> tuple[StoredEvent, ...]:
    rows = session.scalars(select(RunEventRow).where(RunEventRow.run_id == run.id).order_by(RunEventRow.id))
    return tuple(StoredEvent(RunStatus(row.status), row.at, row.detail) for row in rows)


def _arms(session: Session, run: RunRow) -> tuple[StoredArm, ...]:
    rows = session.scalars(select(ArmRow).where(ArmRow.run_id == run.id).order_by(ArmRow.id)).all()
    return tuple(
        StoredArm(
            name=arm.name,
            kind=ArmKind(arm.kind),
            level=Level[arm.level],
            lossless=arm.lossless,
            spec=arm.spec,
            effective=Effective.from_json(arm.effective),
            counts=accounts.arm_counts(session, arm),
        )
        for arm in rows
    )


def load_arm(
    session: Session,
    ulid: str,
    name: str,
    payload_of: Callable[[int], bytes],
    kept: Mapping[int, WithheldContent],
    keys: Collection[RequestKey] | None = None,
) -> ArmRecord:
    """The requests of an arm, ordered by case and sample; every trace is verified once and read again on access.

    Args:
        session: for the rows read now.
        ulid: the run.
        name: the arm.
        payload_of: reads a trace's bytes later, by its request's row.
        kept: content that is in memory only, by its request's row.
        keys: the requests to read; None for all.

    Raises:
        UserError: no such run or arm.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    arm = find_arm(session, find_run(session, ulid), name)
    return _arm_record(session, ulid, arm, payload_of, kept, _of(keys))


def _of(keys: Collection[RequestKey] | None) -> tuple[ColumnElement[bool], ...]:
    """The condition that a row is one of the requests."""
    if keys is None:
        return ()
    return (tuple_(RequestRow.case_id, RequestRow.sample).in_([(key.case_id, key.sample) for key in keys]),)


def arms(session: Session, ulid: str) -> Iterator[ArmRecord]:
    """The arms of a run as `load_arm` gives them; their traces are read in this session."""
    run = find_run(session, ulid)
    for arm in session.scalars(select(ArmRow).where(ArmRow.run_id == run.id).order_by(ArmRow.id)).all():
        yield _arm_record(session, ulid, arm, lambda row: payload(session, row), {})


def _arm_record(
    session: Session,
    ulid: str,
    arm: ArmRow,
    payload_of: Callable[[int], bytes],
    kept: Mapping[int, WithheldContent],
    only: Sequence[ColumnElement[bool]] = (),
) -> ArmRecord:
    place = f"run {ulid}, arm {arm.name}"
    stored = sorted(_stored_rows(session, place, arm, kept, only), key=lambda row: (row.case_id, row.sample))
    level = min([Level[arm.level], *(each.level for each in stored)])
    done, failed, refused = (
        _lazily([each for each in stored if (each.failed, each.refused) == end], payload_of)
        for end in ((False, False), (True, False), (False, True))
    )
    return ArmRecord(arm.name, ArmKind(arm.kind), level, Effective.from_json(arm.effective), done, failed, refused)


def _lazily(stored: Sequence[_Stored], payload_of: Callable[[int], bytes]) -> LazyRequests:
    return LazyRequests(len(stored), lambda index: stored[index].read(payload_of))


def payload(session: Session, row: int) -> bytes:
    """The bytes of a request's trace."""
    return session.execute(select(TokenTraceRow.payload).where(TokenTraceRow.request_id == row)).scalar_one()


@dataclass(frozen=True, slots=True)
class _Stored:
    """A request row without its trace's columns."""

    row: int
    header: traces.TraceHeader
    tokens: tuple[int, ...]
    case_id: str
    sample: int
    domain: str
    text: str
    finish_reason: FinishReason
    latency_us: int
    intact: bool

    @property
    def failed(self) -> bool:
        """True if the engine gave no answer."""
        # imported late, as in `_stored`
        from engine.core.types import FinishReason

        return self.finish_reason is FinishReason.ERROR

    @property
    def refused(self) -> bool:
        """True if a filter refused the prompt."""
        from engine.core.types import FinishReason

        return self.finish_reason is FinishReason.FILTER and not self.tokens

    @property
    def level(self) -> Level:
        """Highest evidence level of this request; a failed request does not lower the arm's level."""
        return Level.L4 if self.failed else Level(self.header.facts.get("level", Level.L4))

    def read(self, payload_of: Callable[[int], bytes]) -> RequestRecord:
        # imported late, as in `_stored`
        from engine.record import trace as traces
        from engine.record.late import late

        return RequestRecord(
            request_id=self.header.request,
            case_id=self.case_id,
            sample=self.sample,
            domain=self.domain,
            trace=late(self.header, lambda: traces.decode(payload_of(self.row))),
            tokens=self.tokens,
            text=self.text,
            finish_reason=self.finish_reason,
            latency_us=self.latency_us,
            intact=self.intact,
        )


def _absence(session: Session, row: RequestRow) -> str:
    """Why a request has no content."""
    erasure = contents.erasure_of(session, row.id)
    if erasure is None:
        return "the content is missing from the store"
    if erasure.reason == withheld.REASON:
        return withheld.ABSENCE
    return f"the content was erased on {erasure.created_at:%Y-%m-%d} ({erasure.reason})"


def _stored_rows(
    session: Session,
    place: str,
    arm: ArmRow,
    kept: Mapping[int, WithheldContent],
    only: Sequence[ColumnElement[bool]],
) -> Iterator[_Stored]:
    """An arm's requests in the order of their rows, a batch at a time, because traces are large."""
    query = (
        select(RequestRow, ContentRow, TokenTraceRow.payload, TokenTraceRow.sha256)
        .outerjoin(ContentRow, ContentRow.request_id == RequestRow.id)
        .outerjoin(TokenTraceRow, TokenTraceRow.request_id == RequestRow.id)
        .where(RequestRow.arm_id == arm.id, *only)
        .order_by(RequestRow.id)
    )
    # closed at once, also when a request is refused: PostgreSQL's cursor is the server's
    with session.execute(query.execution_options(yield_per=contents.BATCH)) as found:
        for row, content, trace, sha256 in found:
            own = f"{place}, case {row.case_id}#{row.sample}"
            if row.id in kept:
                yield _stored(own, row, kept[row.id])
                continue
            if content is None:
                raise CannotDecide(f"{own}: {_absence(session, row)}")
            if trace is None:
                raise CannotDecide(f"{own}: the trace is missing from the store")
            yield _stored(own, row, WithheldContent(trace, sha256, content.text, content.output_sha256))


def _stored(place: str, row: RequestRow, found: WithheldContent) -> _Stored:
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from engine.core.types import FinishReason
    from engine.record import envelope
    from engine.record import trace as traces

    try:
        bare = envelope.opened(found.payload)
        trace = traces.decoded(bare, only=traces.STORED)
    except TraceError as error:
        raise CannotDecide(f"{place}: the stored trace cannot be decoded ({error})") from error
    misfit = integrity.shape_error(trace)
    if misfit is not None:
        raise CannotDecide(f"{place}: the stored trace cannot be decoded ({misfit})")
    # The row's own digest of the output ties the trace to the row, whatever the trace's digest says.
    same_output = contents.tokens_hash(trace.tokens) == found.output_sha256
    return _Stored(
        row=row.id,
        header=trace.header,
        tokens=trace.tokens,
        case_id=row.case_id,
        sample=row.sample,
        domain=row.domain,
        text=found.text,
        finish_reason=FinishReason(row.finish_reason),
        latency_us=row.latency_us,
        intact=same_output and bare.digest == found.sha256,
    )
