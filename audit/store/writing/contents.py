"""Content of requests and results, compared with the commitments that the evidence keeps to it.

Content that is missing must be named by an erasure.

Runs with `text: off`: their content never reaches the database, which gets commitments and erasures in its place.
The process that runs them keeps the content until the run is finished, because checks read it. Nothing can read it
later: such a run cannot be resumed, judged again, or replayed. Cannot see: what the engine itself writes elsewhere.

The texts of the tokens that occur in a run are kept once per tokenizer, so that SQL can name a token. A token of bytes
that are no whole character has U+FFFD in its text.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session

from audit.store.base import commitments
from audit.store.base.canonical import storable
from audit.store.base.values import IntegrityViolation
from audit.store.tables.content import CONTENT, FINDING, ContentRow, ErasureRow, FindingRow
from audit.store.tables.runs import (
    TOKEN_COLUMNS,
    ArmRow,
    RequestRow,
    RequestStepsRow,
    RequestTokensRow,
    RunArtifactRow,
    RunRow,
    TokenPieceRow,
    TokenTraceRow,
    find_run,
)
from audit.store.tables.verdicts import CheckRow
from engine.core.errors import TraceError

if TYPE_CHECKING:
    from engine.record import envelope


BATCH: Final = 16
"""Requests that are read at once."""
KEY: Final = "text"
"""Key of an arm's specification."""
OFF: Final = "off"
REASON: Final = "text: off"
"""Reason of the erasures that stand for content which was never written."""
ABSENCE: Final = "the content was never written (text: off)"
TOKENIZER = "tokenizer"
"""Role of a run's tokenizer."""


@dataclass(frozen=True, slots=True)
class RequestParts:
    """A request's rows; None where one is missing."""

    request: RequestRow
    content: ContentRow | None
    steps: RequestStepsRow | None
    tokens: RequestTokensRow | None
    trace: TokenTraceRow | None


def parts_of(session: Session, arm_id: int) -> Iterator[RequestParts]:
    """The rows of an arm's requests, a batch at a time, because traces are large."""
    query = select(RequestRow, ContentRow, RequestStepsRow, RequestTokensRow, TokenTraceRow)
    for part in (ContentRow, RequestStepsRow, RequestTokensRow, TokenTraceRow):
        query = query.outerjoin(part, part.request_id == RequestRow.id)
    ordered = query.where(RequestRow.arm_id == arm_id).order_by(RequestRow.id)
    for row in session.execute(ordered.execution_options(yield_per=BATCH)):
        yield RequestParts(*row)


def erasure_of(session: Session, request_id: int) -> ErasureRow | None:
    """The first erasure of a request's content."""
    query = select(ErasureRow).where(ErasureRow.request_id == request_id, ErasureRow.what == CONTENT)
    return session.scalars(query.order_by(ErasureRow.id).limit(1)).one_or_none()


def erasures_of(session: Session, run_id: int, requests: Select[int]) -> dict[int, ErasureRow]:
    """The first erasure of each request's content: those that name the run, and those that name one of the requests."""
    named = (ErasureRow.run_id == run_id) | ErasureRow.request_id.in_(requests)
    query = select(ErasureRow).where(named, ErasureRow.what == CONTENT).order_by(ErasureRow.id.desc())
    return {row.request_id: row for row in session.scalars(query) if row.request_id is not None}


def broken(parts: RequestParts, erasure: ErasureRow | None, bare: envelope.Opened | None) -> str | None:
    """Why a request's content and trace are not the recorded ones; None if they are, or were erased.

    `bare` is the trace as `intact` gives it.
    """
    request, content, trace, tokens = parts.request, parts.content, parts.trace, parts.tokens
    if erasure is not None:
        return _erasure_broken(erasure, request, kept=any((content, trace, tokens)))
    if trace is None:
        return "its trace is missing, and no erasure names it"
    if content is None:
        return "its content is missing, and no erasure names it"
    if tokens is None:
        return "its tokens are missing, and no erasure names them"
    if bare is None:
        return "its trace was changed"
    misfit = misfit_of(bare)
    if misfit is not None:
        return f"its trace cannot be read: {misfit}"
    return _uncommitted(request, content, trace, tokens)


def _erasure_broken(erasure: ErasureRow, request: RequestRow, *, kept: bool) -> str | None:
    if not erasure.reason.strip():
        return "its erasure gives no reason"
    if erasure.run_id != request.run_id:
        return "its erasure names another run"
    return "its erasure is on record, but its content is still there" if kept else None


def _uncommitted(
    request: RequestRow, content: ContentRow, trace: TokenTraceRow, tokens: RequestTokensRow
) -> str | None:
    """Which part of the content differs from its commitment."""
    if content.salt is None or content.prompt_ids is None:
        return "its salt or prompt is missing"
    try:
        same = tokens_hash(content.prompt_ids) == content.prompt_sha256
    except (struct.error, TypeError):  # what is stored is no list of tokens
        same = False
    if not same:
        return "its prompt was changed"
    result = {
        "prompt": commitments.of_prompt(content.salt, content.prompt_ids),
        "output": commitments.of_output(content.salt, content.output_sha256, content.text),
        "trace": commitments.of_trace(content.salt, trace.sha256),
        "tokens": commitments.of_tokens(content.salt, [getattr(tokens, name) for name in TOKEN_COLUMNS]),
    }
    differing = [name for name, value in result.items() if value != getattr(request, f"{name}_commitment")]
    if len(differing) == len(result):
        return "its salt was changed"
    return f"the commitment contradicts its {' and its '.join(differing)}" if differing else None


def broken_findings(session: Session, run: RunRow) -> Iterator[IntegrityViolation]:
    """Results of a run whose findings are not the recorded ones and were not erased."""
    erased = {
        row.check_result_id: row
        for row in session.scalars(select(ErasureRow).where(ErasureRow.run_id == run.id, ErasureRow.what == FINDING))
    }
    query = (
        select(CheckRow, FindingRow, ArmRow.name)
        .join(ArmRow, ArmRow.id == CheckRow.arm_id)
        .outerjoin(FindingRow, FindingRow.check_result_id == CheckRow.id)
        .where(CheckRow.run_id == run.id)
        .order_by(CheckRow.id)
    )
    for check, finding, arm in session.execute(query):
        problem = _finding_broken(check, finding, erased.get(check.id))
        if problem is not None:
            yield IntegrityViolation(f"{arm} {check.name}", problem)


def _finding_broken(check: CheckRow, finding: FindingRow | None, erasure: ErasureRow | None) -> str | None:
    if erasure is not None:
        if not erasure.reason.strip():
            return "the erasure of its findings gives no reason"
        return None if finding is None else "the erasure of its findings is on record, but they are still there"
    if finding is None:
        return None if not check.n_findings else "its findings are missing, and no erasure names them"
    salt, result = finding.salt or b"", finding.findings
    same = commitments.of_findings(salt, finding.summary, result) == check.findings_commitment
    return None if same and len(result) == check.n_findings else "its findings differ from the commitment"


def intact(payload: bytes, sha256: str) -> envelope.Opened | None:
    """The trace, decompressed; None if it cannot be read, or no longer has its digest."""
    # imported with the first trace: zstandard is not needed to list runs and verdicts
    from engine.record import envelope

    try:
        bare = envelope.opened(payload)
    except TraceError:
        return None
    return bare if bare.digest == sha256 else None


def misfit_of(bare: envelope.Opened) -> str | None:
    """Why a trace cannot be read, though it has its digest; None if it can."""
    # imported late, as above
    from engine.record import trace as traces

    try:
        traces.fitting(bare, ())
    except TraceError as error:
        return str(error)
    return None


def tokens_hash(tokens: Iterable[int]) -> str:
    """Hex SHA-256 of token ids as little-endian 64-bit integers."""
    return hashlib.sha256(commitments.token_bytes(tokens)).hexdigest()


@dataclass(frozen=True, slots=True)
class WithheldContent:
    """Content of one request that stays in memory: its trace with the digest, the answer, and its tokens' digest."""

    payload: bytes
    sha256: str
    text: str
    output_sha256: str


def withholds(spec: Mapping[str, Any]) -> bool:
    """True if an arm with this specification keeps its content out of the database."""
    return bool(spec.get(KEY) == OFF)


def add_pieces(session: Session, ulid: str, text: Callable[[int], str]) -> int:
    """Store the texts of a run's tokens that the store lacks; returns their number, 0 without a tokenizer."""
    run = find_run(session, ulid)
    used = select(RunArtifactRow.artifact_id).where(RunArtifactRow.run_id == run.id, RunArtifactRow.role == TOKENIZER)
    tokenizer = session.scalars(used.order_by(RunArtifactRow.artifact_id).limit(1)).one_or_none()
    if tokenizer is None:
        return 0
    known = select(TokenPieceRow.token).where(TokenPieceRow.tokenizer_id == tokenizer)
    missing = sorted(_tokens(session, run.id) - set(session.scalars(known)))
    rows = [{"tokenizer_id": tokenizer, "token": token, "piece": storable(text(token))} for token in missing]
    if rows:
        session.execute(insert(TokenPieceRow), rows)
    return len(rows)


def _tokens(session: Session, run_id: int) -> set[int]:
    query = select(RequestTokensRow.token).join(RequestRow, RequestRow.id == RequestTokensRow.request_id)
    result: set[int] = set()
    for steps in session.scalars(query.where(RequestRow.run_id == run_id)):
        result.update(chain.from_iterable(json.loads(steps)))
    return result
