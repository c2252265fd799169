"""The record of a request that another engine answered, from the steps that it reported."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request, StepRecord
from engine.record.foreign.steps import ForeignStep, step_record
from engine.record.recorder import to_trace
from engine.record.rows.reduction import RecordedBlock, block_of, reduce
from engine.record.trace import TraceHeader, encode


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
        stream=request.stream,
        sampling=request.sampling,
        finish_reason=reason,
        prompt=request.prompt,
        facts=dict(facts),
        **asdict(observed),
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
    """The encoded record: at the header's level, or at `tokens` if a step has neither rows nor their columns."""
    if any(step.logits is None and step.columns is None for step in answer.steps):
        header = replace(header, level=RecordLevel.TOKENS)
    records, history = [], list(header.prompt)
    for index, step in enumerate(answer.steps):
        records.append(step_record(index, step, history, header))
        history += step.emitted
    trace = to_trace(header, _blocks(header, answer.steps, records))
    if answer.logprob:
        trace = replace(trace, logprob=np.array(answer.logprob), margin=np.array(answer.margin))
    return encode(trace)


def _blocks(header: TraceHeader, steps: Sequence[ForeignStep], records: list[StepRecord]) -> list[RecordedBlock]:
    """The steps reduced, here or already where their rows were."""
    reduced = [(record, step.columns) for record, step in zip(records, steps, strict=True) if step.columns is not None]
    if records and len(reduced) == len(records):
        return [block_of([record], columns) for record, columns in reduced]
    return [reduce(header, records)] if records else []


def failed_trace(header: TraceHeader) -> bytes:
    """The record of a request without an answer; its facts state the reason."""
    return encode(to_trace(replace(header, finish_reason=FinishReason.ERROR), []))


def unanswered(request: Request, observed: ForeignEngine, kind: str, message: str) -> Generation:
    """The generation of a request without an answer, by the kind of its failure (`Engine.generate`) and its message."""
    facts = {"error": {"kind": kind, "message": message}}
    header = header_of(request, observed, FinishReason.ERROR, facts)
    return Generation(request, (), FinishReason.ERROR, failed_trace(header), facts=facts)
