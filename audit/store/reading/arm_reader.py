"""Read requests with their traces from a store; nothing is written, and a read trace is compared with its digest.

Each function takes an open session. A trace's columns are read when a check asks for them, unless it says otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session
from sqlalchemy.sql import ColumnElement

from audit.errors import CannotDecide, UnreadableRecord
from audit.evidence.records import ArmKind, ArmRecord, LazyRequests, Level, RequestRecord, is_directed, request_order
from audit.store.base.canonical import exact_text
from audit.store.base.values import RequestKey
from audit.store.tables.content import ContentRow
from audit.store.tables.runs import ArmRow, RequestRow, TokenTraceRow, find_arm, find_run, value_of
from audit.store.writing import contents
from audit.store.writing.contents import WithheldContent
from audit.store.writing.request_writer import NewRequest
from engine.core.errors import TraceError
from engine.record.effective import Effective

if TYPE_CHECKING:
    from engine.core.types import FinishReason
    from engine.record import trace as traces


def load_arm(
    session: Session,
    ulid: str,
    name: str,
    payload_of: Callable[[int], bytes],
    kept: Mapping[int, WithheldContent],
    keys: Collection[RequestKey] | None = None,
) -> ArmRecord:
    """The requests of an arm, the suite's own before directed ones.

    Every trace is verified once and read again on access: `payload_of` reads its bytes by its request's row; `kept` is
    content that is in memory only, by the same. `keys` are the requests to read; None for all.

    Raises:
        UserError: no such run or arm.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    arm = find_arm(session, find_run(session, ulid), name)
    place = f"run {ulid}, arm {arm.name}"
    # closed before the session is: a record that cannot be read leaves the rows behind it unread
    with closing(_found(session, place, arm, kept, _of(keys))) as result:
        stored = sorted((_light(request) for request in result), key=lambda row: request_order(row.case_id, row.sample))
    level = min([Level[arm.level], *(item.level for item in stored)])
    parts = [
        [item for item in stored if (item.failed, item.refused) == end]
        for end in ((False, False), (True, False), (False, True))
    ]
    done, failed, refused = (_lazily(part, payload_of) for part in parts)
    directed = {at: f"{it.case_id}#{it.sample}" for at, it in enumerate(parts[0]) if is_directed(it.case_id)}
    effective = Effective.from_json(arm.effective)
    return ArmRecord(arm.name, ArmKind(arm.kind), level, effective, done, failed, refused, directed)


def _of(keys: Collection[RequestKey] | None) -> tuple[ColumnElement[bool], ...]:
    """The condition that a row is one of the requests."""
    if keys is None:
        return ()
    return (tuple_(RequestRow.case_id, RequestRow.sample).in_([(key.case_id, key.sample) for key in keys]),)


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """A request with the name of its arm."""

    arm: str
    record: RequestRecord


def requests(session: Session, ulid: str) -> Iterator[ArmRequest]:
    """All requests of a run, each with its whole trace, which is read once; arm by arm, in the order of their rows.

    Raises:
        CannotDecide: a trace is missing or cannot be decoded.
    """
    run = find_run(session, ulid)
    for arm in session.scalars(select(ArmRow).where(ArmRow.run_id == run.id).order_by(ArmRow.id)).all():
        for result in _found(session, f"run {ulid}, arm {arm.name}", arm, {}, ()):
            read = _read(result, None)
            yield ArmRequest(arm.name, _stored(result, read).record(read.trace))


def copies(session: Session, ulid: str, name: str, part: range) -> tuple[NewRequest, ...]:
    """Part of an arm's requests, from 0 in the order of their rows, as another run can record them.

    Raises:
        CannotDecide: a trace is missing, cannot be decoded, or is not the one on record.
    """
    arm = find_arm(session, find_run(session, ulid), name)
    rows = select(RequestRow.id).where(RequestRow.arm_id == arm.id).order_by(RequestRow.id)
    only = (RequestRow.id.in_(rows.offset(part.start).limit(len(part))),)
    return tuple(_copy(result, name) for result in _found(session, f"run {ulid}, arm {name}", arm, {}, only))


def _copy(result: _Found, arm: str) -> NewRequest:
    # imported late, as in `_read`
    from engine.core.types import Generation, Request

    stored, content = _light(result), result.content
    if not stored.intact:
        raise CannotDecide(f"{result.place}: the stored trace or output is not the one on record")
    header = stored.header
    request = Request(header.request, tuple(header.prompt), header.sampling, header.stream)
    made = Generation(
        request,
        tuple(stored.tokens),
        stored.finish_reason,
        content.payload,
        exact_text(content.text),
        stored.latency_us,
        header.facts,
    )
    return NewRequest(arm, stored.domain, stored.case_id, stored.sample, made)


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
    tokens: array[int]
    """Four bytes each: an arm of millions of tokens waits in memory."""
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
        """The record with a trace that is read when a check first asks for its columns."""
        # imported late, as in `_read`
        from engine.record.trace import lazy_trace

        return self.record(lazy_trace(self.header, lambda: payload_of(self.row)))

    def record(self, trace: traces.Trace) -> RequestRecord:
        """The record with its trace."""
        return value_of(RequestRecord, self, request_id=self.header.request, trace=trace, tokens=tuple(self.tokens))


def _absence(session: Session, row: RequestRow) -> str:
    """Why a request has no content."""
    erasure = contents.erasure_of(session, row.id)
    if erasure is None:
        return "the content is missing from the store"
    if erasure.reason == contents.REASON:
        return contents.ABSENCE
    return f"the content was erased on {erasure.created_at:%Y-%m-%d} ({erasure.reason})"


@dataclass(frozen=True, slots=True)
class _Found:
    """A request's row with its content; `place` names it in messages."""

    place: str
    row: RequestRow
    content: WithheldContent


def _found(
    session: Session, place: str, arm: ArmRow, kept: Mapping[int, WithheldContent], only: Sequence[ColumnElement[bool]]
) -> Generator[_Found, None, None]:
    """An arm's requests in the order of their rows, a batch at a time, because traces are large."""
    query = (
        select(RequestRow, ContentRow, TokenTraceRow.payload, TokenTraceRow.sha256)
        .outerjoin(ContentRow, ContentRow.request_id == RequestRow.id)
        .outerjoin(TokenTraceRow, TokenTraceRow.request_id == RequestRow.id)
        .where(RequestRow.arm_id == arm.id, *only)
        .order_by(RequestRow.id)
    )
    # closed at once, also when a request is refused: PostgreSQL's cursor is the server's
    with session.execute(query.execution_options(yield_per=contents.BATCH)) as rows:
        for row, content, trace, sha256 in rows:
            own = f"{place}, case {row.case_id}#{row.sample}"
            if row.id in kept:
                yield _Found(own, row, kept[row.id])
                continue
            if content is None:
                raise CannotDecide(f"{own}: {_absence(session, row)}")
            if trace is None:
                raise CannotDecide(f"{own}: the trace is missing from the store")
            yield _Found(own, row, WithheldContent(trace, sha256, content.text, content.output_sha256))


@dataclass(frozen=True, slots=True)
class _Read:
    """A trace, or some of its columns, and whether it still has its digest."""

    trace: traces.Trace
    intact: bool


def _read(result: _Found, only: Collection[str] | None) -> _Read:
    """The trace of a request, with the columns in `only` or all of them."""
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from engine.record import envelope
    from engine.record import trace as traces

    try:
        bare = envelope.opened(result.content.payload)
        trace = traces.decoded(bare, only=only)
    except TraceError as error:
        raise UnreadableRecord(f"{result.place}: the stored trace cannot be decoded ({error})") from error
    return _Read(trace, bare.digest == result.content.sha256)


def _light(result: _Found) -> _Stored:
    from engine.record.trace import STORED

    return _stored(result, _read(result, STORED))


def _stored(result: _Found, read: _Read) -> _Stored:
    # imported late, as in `_read`
    from engine.core.types import FinishReason

    row, trace = result.row, read.trace
    # The row's own digest of the output ties the trace to the row, whatever the trace's digest says.
    same_output = contents.tokens_hash(trace.tokens) == result.content.output_sha256
    return _Stored(
        row=row.id,
        header=trace.header,
        tokens=array("I", trace.tokens),
        case_id=row.case_id,
        sample=row.sample,
        domain=row.domain,
        text=exact_text(result.content.text),
        finish_reason=FinishReason(row.finish_reason),
        latency_us=row.latency_us,
        intact=same_output and read.intact,
    )
