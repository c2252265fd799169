"""Generates a prepared arm's requests, independent of their storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from audit.evidence.records import ArmRecord
from audit.runs.prepare import PreparedArm
from audit.runs.readings import reading
from engine.core.types import Generation, Request


def generations(
    arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]
) -> Iterator[Generation]:
    """Run requests of the arm; a reading arm gets the records that it follows, which `done` returns by the arm's name.

    Raises:
        EngineError: the arm cannot continue.
    """
    if not arm.planned.kind.reads:
        return arm.engine.generate(requests)
    return _read(arm, requests, done)


def _read(arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]) -> Iterator[Generation]:
    assert arm.planned.along is not None
    if not requests:
        return
    answered = {(other.case_id, other.sample): other for other in done(arm.planned.along).requests}
    cases = {request.id: (key.case_id, key.sample) for key, request in arm.requests.items()}
    read = reading(arm.planned.kind, arm.engine).read
    for request in requests:
        # the engine did not answer every request
        record = answered.get(cases[request.id])
        generation = None if record is None else read(request, record)
        if generation is not None:
            yield generation
