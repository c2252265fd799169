"""Write finished requests: their rows, content, steps, tokens and traces, a statement per table.

Functions take an open session inside a transaction and never commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.base import commitments
from audit.store.base.canonical import sha256_json, stored_text
from audit.store.base.values import RunStatus
from audit.store.ledger import log
from audit.store.tables.content import CONTENT, ErasureRow
from audit.store.tables.runs import ArmRow, RequestRow, find_arm, find_run, now
from audit.store.writing import contents, events, integrity
from audit.store.writing.contents import WithheldContent

if TYPE_CHECKING:
    from audit.store.writing.readable import Readable
    from engine.core.types import Generation, SamplingParams
    from engine.record import joined_traces
    from engine.record.columns import HeldColumns


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One generation with its arm, domain, case and sample."""

    arm: str
    domain: str
    case_id: str
    sample: int
    generation: Generation


def add_requests(session: Session, ulid: str, requests: Sequence[NewRequest]) -> dict[int, WithheldContent]:
    """Insert finished requests with their steps and traces; returns the content that must stay in memory, by row.

    Raises:
        UserError: no such run or arm, or the run is not running.
        engine.core.errors.TraceError: a generation whose trace cannot be decoded or does not fit.
    """
    run = find_run(session, ulid)
    if run.status != RunStatus.RUNNING:
        raise UserError(f"run {ulid} is {run.status}; requests can be added to a running one only")
    arms = {name: find_arm(session, run, name) for name in dict.fromkeys(new.arm for new in requests)}
    made = _made(run.id, [arms[new.arm] for new in requests], requests)
    if not made:
        return {}
    numbered_rows = list(zip(_free_numbers(session, len(made)), made, strict=True))
    log.insert_rows(session, "request", [{"id": number} | row.request for number, row in numbered_rows])
    log.insert_rows(session, "request_steps", [{"request_id": number} | row.steps for number, row in numbered_rows])
    written = [(number, row) for number, row in numbered_rows if not row.withheld]
    for name, table in {"content": "content", "tokens": "request_tokens", "trace": "token_trace"}.items():
        log.insert_rows(session, table, [{"request_id": number, **getattr(row, name)} for number, row in written])
    for name in events.TABLES:
        writing = written if name in events.ERASED else numbered_rows
        happened = [{"request_id": number, **event} for number, row in writing for event in row.events[name]]
        log.insert_rows(session, name, happened)
    left_out = {number: _withheld(row) for number, row in numbered_rows if row.withheld}
    shared: dict[str, Any] = {"run_id": run.id, "reason": contents.REASON, "actor": run.actor, "created_at": now()}
    session.add_all(ErasureRow(request_id=number, what=CONTENT, **shared) for number in left_out)
    return left_out


@dataclass(frozen=True, slots=True)
class _Made:
    """The rows of one request without its number; `withheld` if its content must not be written."""

    request: dict[str, Any]
    content: dict[str, Any]
    steps: dict[str, str | None]
    tokens: dict[str, str | None]
    trace: dict[str, Any]
    events: Mapping[str, Sequence[events.Row]]
    withheld: bool


def _free_numbers(session: Session, count: int) -> Sequence[int]:
    """Numbers for new requests; nobody else gets them."""
    if session.get_bind().dialect.name == "postgresql":
        drawn = text("SELECT nextval(pg_get_serial_sequence('request', 'id')) FROM generate_series(1, :count)")
        return session.execute(drawn, {"count": count}).scalars().all()
    # the transaction holds SQLite's write lock since it began
    first = session.execute(select(func.coalesce(func.max(RequestRow.id), 0))).scalar_one() + 1
    return range(first, first + count)


def _withheld(row: _Made) -> WithheldContent:
    content, trace = row.content, row.trace
    return WithheldContent(trace["payload"], trace["sha256"], content["text"], content["output_sha256"])


def _made(run_id: int, arms: Sequence[ArmRow], requests: Sequence[NewRequest]) -> list[_Made]:
    """The rows of each request. Their traces are read one after another, because some are large."""
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from audit.store.writing.readable import NEEDED, readable_of
    from engine.record import envelope, joined_traces
    from engine.record import trace as traces

    opened = (envelope.opened(new.generation.trace) for new in requests)
    read = [_Read(bare.digest, traces.fitting(bare, NEEDED)) for bare in opened]
    rows: dict[int, _Made] = {}
    for joined in joined_traces.joined([item.held for item in read], NEEDED):
        columns = zip(joined.places, _counts(joined), readable_of(joined), strict=True)
        for place, counts, readable in columns:
            rows[place] = _row(run_id, arms[place], requests[place], read[place], counts, readable)
    return [rows[place] for place in range(len(requests))]


@dataclass(frozen=True, slots=True)
class _Read:
    """The digest of a trace, and its columns."""

    digest: str
    held: HeldColumns


def _counts(joined: joined_traces.JoinedTraces) -> Iterator[dict[str, int]]:
    drafted, emitted = (joined.totals(counts) for counts in (joined.trace.n_drafted, joined.trace.n_emitted))
    columns = (joined.steps, drafted, joined.accepted(), emitted)
    for steps, drafts, kept, output in zip(*(column.tolist() for column in columns), strict=True):
        yield {"n_output": output, "n_steps": steps, "n_drafted": drafts, "n_accepted": kept}


def _row(
    run_id: int, arm: ArmRow, new: NewRequest, read: _Read, counts: Mapping[str, int], readable: Readable
) -> _Made:
    from engine.record import envelope

    steps, tokens = asdict(readable.steps), asdict(readable.tokens)
    content = _content(new)
    row = _request_values(run_id, arm.id, new, counts) | _commitments(content, read.digest, tokens)
    row["record_hash"] = integrity.record_hash(arm.context_sha256, row, steps)
    payload, emitted = new.generation.trace, counts["n_output"]
    stored = {"format": envelope.FORMAT, "n_events": emitted, "sha256": read.digest, "payload": payload}
    happened = events.rows_of(read.held.header.facts)
    return _Made(row, content, steps, tokens, stored, happened, contents.withholds(arm.spec))


def _request_values(run_id: int, arm_id: int, new: NewRequest, counts: Mapping[str, int]) -> dict[str, Any]:
    request, generation = new.generation.request, new.generation
    return {
        "run_id": run_id,
        "arm_id": arm_id,
        "case_id": new.case_id,
        "sample": new.sample,
        "domain": new.domain,
        "sampling_sha256": _sampling_sha256(request.sampling),
        "seed": str(request.sampling.seed),
        "stream": str(request.stream),
        "n_prompt": len(request.prompt),
        **counts,
        "n_output": len(generation.tokens),
        "finish_reason": generation.finish_reason.value,
        "latency_us": int(generation.latency_us),
        "record_version": integrity.RECORD_VERSION,
    }


@lru_cache(maxsize=256)
def _sampling_sha256(sampling: SamplingParams) -> str:
    """Requests of an arm share their parameters, so most digests are known."""
    return sha256_json(sampling.document())


def _content(new: NewRequest) -> dict[str, Any]:
    """Columns of the request's content."""
    prompt = [int(token) for token in new.generation.request.prompt]
    return {
        "salt": commitments.new_salt(),
        "prompt_ids": prompt,
        "prompt_sha256": contents.tokens_hash(prompt),
        "output_sha256": contents.tokens_hash(new.generation.tokens),
        "text": stored_text(new.generation.text),
    }


def _commitments(content: Mapping[str, Any], trace_sha256: str, tokens: Mapping[str, str | None]) -> dict[str, str]:
    salt = content["salt"]
    return {
        "prompt_commitment": commitments.of_prompt(salt, content["prompt_ids"]),
        "output_commitment": commitments.of_output(salt, content["output_sha256"], content["text"]),
        "trace_commitment": commitments.of_trace(salt, trace_sha256),
        "tokens_commitment": commitments.of_tokens(salt, tokens.values()),
    }
