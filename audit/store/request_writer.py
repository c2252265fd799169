"""Write finished requests: their rows, content, steps, tokens and traces, a statement per table.

Functions take an open session inside a transaction and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store import commitments, contents, integrity, log, withheld
from audit.store.canonical import sha256_json, storable
from audit.store.erasable import CONTENT, ErasureRow
from audit.store.models import ArmRow, Base, RunRow
from audit.store.values import RunStatus
from audit.store.withheld import WithheldContent
from audit.store.writer import find_arm, find_run, now

if TYPE_CHECKING:
    from engine.core.types import Generation, SamplingParams
    from engine.record import trace as traces


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
        engine.core.errors.TraceError: a generation whose trace cannot be decoded.
    """
    run = find_run(session, ulid)
    if run.status != RunStatus.RUNNING:
        raise UserError(f"run {ulid} is {run.status}; requests can be added to a running one only")
    arms = {name: find_arm(session, run, name) for name in dict.fromkeys(new.arm for new in requests)}
    stored = [_made(run.id, arms[new.arm], new) for new in requests]
    return _insert(session, run, stored)


@dataclass(frozen=True, slots=True)
class _Made:
    """The rows of one request without its number; `withheld` if its content must not be written."""

    request: dict[str, Any]
    content: dict[str, Any]
    steps: dict[str, str | None]
    tokens: dict[str, str | None]
    trace: dict[str, Any]
    withheld: bool


def _insert(session: Session, run: RunRow, made: Sequence[_Made]) -> dict[int, WithheldContent]:
    """Insert the rows of several requests, a statement per table; returns what was left out."""
    if not made:
        return {}
    tables = Base.metadata.tables
    request = tables["request"]
    numbered = insert(request).returning(request.c.id, sort_by_parameter_order=True)
    ids = session.execute(numbered, [each.request for each in made]).scalars().all()
    numbered_rows = list(zip(ids, made, strict=True))
    log.note(session, "request", [(number,) for number in ids])
    session.execute(
        insert(tables["request_steps"]), [{"request_id": number} | row.steps for number, row in numbered_rows]
    )
    written = [(number, row) for number, row in numbered_rows if not row.withheld]
    for name, table in {"content": "content", "tokens": "request_tokens", "trace": "token_trace"}.items():
        rows = [{"request_id": number, **getattr(row, name)} for number, row in written]
        if rows:
            session.execute(insert(tables[table]), rows)
    log.note(session, "token_trace", [(number,) for number, _ in written])
    left_out = {number: _withheld(row) for number, row in numbered_rows if row.withheld}
    shared: dict[str, Any] = {"run_id": run.id, "reason": withheld.REASON, "actor": run.actor, "created_at": now()}
    session.add_all(ErasureRow(request_id=number, what=CONTENT, **shared) for number in left_out)
    return left_out


def _withheld(row: _Made) -> WithheldContent:
    content, trace = row.content, row.trace
    return WithheldContent(trace["payload"], trace["sha256"], content["text"], content["output_sha256"])


def _made(run_id: int, arm: ArmRow, new: NewRequest) -> _Made:
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from audit.store.readable import READ, readable, values_of
    from engine.record import envelope
    from engine.record import trace as traces

    payload = new.generation.trace
    bare = envelope.opened(payload)
    trace = traces.decoded(bare, only=READ)
    columns, digest = readable(trace), bare.digest
    steps, tokens = values_of(columns.steps), values_of(columns.tokens)
    content = _content(new)
    row = _request_values(run_id, arm.id, new, trace) | _commitments(content, digest, tokens)
    row["record_hash"] = integrity.record_hash(arm.context_sha256, row, steps)
    stored = {"format": bare.number, "n_events": len(trace.token), "sha256": digest, "payload": payload}
    return _Made(row, content, steps, tokens, stored, withheld.withholds(arm.spec))


def _request_values(run_id: int, arm_id: int, new: NewRequest, trace: traces.Trace) -> dict[str, Any]:
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
        "n_output": len(generation.tokens),
        "n_steps": trace.steps,
        "n_drafted": int(trace.n_drafted.sum(dtype="int64")),
        "n_accepted": trace.n_accepted,
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
        "text": storable(new.generation.text),
    }


def _commitments(content: Mapping[str, Any], trace_sha256: str, tokens: Mapping[str, str | None]) -> dict[str, str]:
    salt = content["salt"]
    return {
        "prompt_commitment": commitments.of_prompt(salt, content["prompt_ids"]),
        "output_commitment": commitments.of_output(salt, content["output_sha256"], content["text"]),
        "trace_commitment": commitments.of_trace(salt, trace_sha256),
        "tokens_commitment": commitments.of_tokens(salt, tokens.values()),
    }
