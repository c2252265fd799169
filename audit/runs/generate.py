"""Generates a prepared arm's requests, independent of their storage.

A record that cannot be written, or that a pass cannot follow, stands for its request as an error of kind `unreadable`,
which the arm's checks call a fault. Failures of the surroundings, such as a lost model file or memory, end the run.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from audit.evidence.records import UNREADABLE, ArmRecord, RequestRecord
from audit.runs.prepare import PreparedArm
from audit.runs.readings import Reading, reading
from audit.store.writing.readable import NEEDED
from engine.core.errors import CapacityError, InvalidRequest, TraceError
from engine.core.types import Generation, RecordLevel, Request
from engine.record.columns import place_fault, shape_fault, token_fault
from engine.record.envelope import opened
from engine.record.foreign.requests import ForeignEngine, unanswered
from engine.record.trace import decoded

OF_RECORDS: Final = (CapacityError, InvalidRequest, TraceError)
"""Errors of a pass along a record that the record causes."""


def generations(
    arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]
) -> Iterator[Generation]:
    """Run requests of the arm; a reading arm gets the records that it follows, which `done` returns by the arm's name.

    Raises:
        EngineError: the arm cannot continue.
    """
    made = _read(arm, requests, done) if arm.planned.kind.reads else arm.engine.generate(requests)
    return (legible(arm, generation) for generation in made)


def legible(arm: PreparedArm, generation: Generation) -> Generation:
    """The generation, or an error of kind `unreadable` in its place if its record cannot be written."""
    try:
        trace = decoded(opened(generation.trace), only=NEEDED)
        fault = place_fault(trace) or (token_fault(trace) if trace.steps else None)
    except TraceError as error:
        fault = str(error)
    return generation if fault is None else _unreadable(arm, generation.request, fault)


def _read(arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]) -> Iterator[Generation]:
    assert arm.planned.along is not None
    if not requests:
        return
    answered = {(other.case_id, other.sample): other for other in done(arm.planned.along).requests}
    cases = {request.id: (key.case_id, key.sample) for key, request in arm.requests.items()}
    pass_along = reading(arm.planned.kind, arm.engine)
    for request in requests:
        # the engine did not answer every request
        record = answered.get(cases[request.id])
        if record is not None and record.trace.steps:
            yield _read_one(arm, pass_along, request, record)


def _read_one(arm: PreparedArm, along: Reading, request: Request, record: RequestRecord) -> Generation:
    reason = shape_fault(record.trace)
    try:
        generation = along.read(request, record) if reason is None else None
    except OF_RECORDS as error:
        return _unreadable(arm, request, str(error))
    return generation or _unreadable(arm, request, reason or "its first step contradicts itself")


def _unreadable(arm: PreparedArm, request: Request, reason: str) -> Generation:
    plan, vocabulary = arm.planned.plan, 1 + max(request.prompt)
    shown = ForeignEngine(vocabulary, (), plan.protocol, plan.proposer or "plain", RecordLevel.TOKENS)
    return unanswered(request, shown, UNREADABLE, reason)
