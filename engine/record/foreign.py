"""Steps that another engine reported, as a record of ours.

Another engine reports its drafted and emitted tokens and the length of the accepted part; some engines also report the
target's rows or their own probabilities. This module computes scores from the raw rows and the requested parameters
with `engine.sampling.transforms`, so an engine that transforms its rows differently differs from these scores. The
module draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.core.types import (
    Emitted,
    Examined,
    FinishReason,
    Floats,
    Mask,
    Proposal,
    Protocol,
    QKind,
    RecordLevel,
    Request,
    Role,
    StepOutcome,
    StepRecord,
    Timing,
    Tree,
)
from engine.record.recorder import to_trace
from engine.record.reduction import reduce
from engine.record.trace import Rows, TraceHeader, encode
from engine.sampling.transforms import transform

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """One step: N drafted tokens, E of the emitted ones kept.

    emitted: [E] committed tokens, without those that the engine cut after a stop.
    accepted: drafted tokens that the engine accepted, before the cut.
    q: [N, V] the rows that the drafts were drawn from, where `q_kind` is FULL.
    logits: [E, V] raw target rows that decided the emitted tokens; None where they are not known.
    p, examined_p, examined_q: the engine's own probabilities of the emitted tokens [E] and of the drafted ones
        [N]; empty if it reports none.
    """

    drafted: tuple[int, ...]
    emitted: tuple[int, ...]
    accepted: int = 0
    q_kind: QKind = QKind.NONE
    q: Floats | None = None
    logits: Rows | None = None
    p: tuple[float, ...] = ()
    examined_p: tuple[float, ...] = ()
    examined_q: tuple[float, ...] = ()
    uniforms: tuple[float, ...] = ()
    """[N] the acceptance numbers, where they are known."""
    timing: Timing = field(default_factory=Timing)
    allowed: Mask | None = None
    """[E, V] the grammar's masks on the rows; None without a grammar, or where they are not known."""

    @property
    def examined(self) -> int:
        """Drafted tokens whose verdict is in the record: those emitted, and the one that was refused."""
        kept = min(self.accepted, len(self.emitted))
        refused = kept == self.accepted < min(len(self.drafted), len(self.emitted))
        return kept + refused


@dataclass(frozen=True, slots=True)
class ForeignEngine:
    """The facts about an engine that a record's header holds."""

    vocabulary: int
    eos_ids: tuple[int, ...]
    protocol: Protocol
    proposer: str
    level: RecordLevel
    lossless: bool = True


def header_of(request: Request, observed: ForeignEngine, reason: FinishReason, facts: Mapping[str, Any]) -> TraceHeader:
    """The header of one request's record."""
    return TraceHeader(
        request=request.id,
        level=observed.level,
        protocol=observed.protocol,
        lossless=observed.lossless,
        proposer=observed.proposer,
        vocabulary=observed.vocabulary,
        stream=request.stream,
        sampling=request.sampling,
        eos_ids=observed.eos_ids,
        finish_reason=reason,
        prompt=request.prompt,
        facts=dict(facts),
    )


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """All data that an engine reported for one request.

    `logprob` [E] if it gives no rows; `margin` [E] if it also reports the lead of the chosen token.
    """

    steps: tuple[ForeignStep, ...]
    logprob: tuple[float, ...] = field(default=())
    margin: tuple[float, ...] = field(default=())


def observed_trace(header: TraceHeader, answer: ForeignRecord) -> bytes:
    """The encoded record: at the header's level, or at level `tokens` where a step has no rows."""
    if any(step.logits is None for step in answer.steps):
        header = replace(header, level=RecordLevel.TOKENS)
    records, history = [], list(header.prompt)
    for index, step in enumerate(answer.steps):
        records.append(_record(index, step, history, header))
        history += step.emitted
    trace = to_trace(header, [reduce(header, records)] if records else [])
    if answer.logprob:
        trace = replace(trace, logprob=np.array(answer.logprob), margin=np.array(answer.margin))
    return encode(trace)


def failed_trace(header: TraceHeader) -> bytes:
    """The record of a request without an answer; its facts state the reason."""
    return encode(to_trace(replace(header, finish_reason=FinishReason.ERROR), []))


def _record(index: int, step: ForeignStep, history: Sequence[int], header: TraceHeader) -> StepRecord:
    rows = np.empty((0, header.vocabulary), np.float32) if step.logits is None else step.logits
    proposal = Proposal(Tree.chain(step.drafted), step.q_kind, step.q)
    return StepRecord(
        step=index,
        position=len(history),
        proposal=proposal,
        verdict=StepOutcome(_emitted(step), _examined(step)),
        logits=rows,
        scores=None if header.sampling.plain_scores or step.logits is None else _scores(step, history, header),
        timing=step.timing,
        allowed=step.allowed,
    )


def _emitted(step: ForeignStep) -> tuple[Emitted, ...]:
    kept = min(step.accepted, len(step.emitted))
    last = Role.PLAIN if not step.drafted else Role.BONUS if step.accepted == len(step.drafted) else Role.RECOVERED
    roles = [Role.ACCEPTED] * kept + [last] * (len(step.emitted) - kept)
    p = step.p or (NAN,) * len(step.emitted)
    return tuple(
        Emitted(token, role, row, value)
        for row, (token, role, value) in enumerate(zip(step.emitted, roles, p, strict=True))
    )


def _examined(step: ForeignStep) -> tuple[Examined, ...]:
    count = len(step.drafted)
    p, q, u = (values or (NAN,) * count for values in (step.examined_p, step.examined_q, step.uniforms))
    return tuple(Examined(node, p[node], q[node], u[node], node < step.accepted) for node in range(step.examined))


def _scores(step: ForeignStep, history: Sequence[int], header: TraceHeader) -> Floats:
    """[E, V] the rows under the requested bias, masks and penalties."""
    assert step.logits is not None
    seen = list(history)
    rows = []
    for at, (row, token) in enumerate(zip(step.logits, step.emitted, strict=True)):
        allowed = None if step.allowed is None else step.allowed[at]
        rows.append(transform(row, seen, len(header.prompt), header.sampling, header.eos_ids, allowed).scores)
        seen.append(token)
    return np.stack(rows)
