"""Generates a prepared arm's requests, independent of their storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from audit.evidence.records import ArmKind, ArmRecord
from audit.runs.prepare import PreparedArm
from engine.backends.interface import Anchoring
from engine.core.types import Generation, Request


def generations(
    arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]
) -> Iterator[Generation]:
    """Run requests of the arm; an anchor reads its candidate's output, which `done` returns by the arm's name.

    Raises:
        EngineError: the arm cannot continue.
    """
    if arm.planned.kind is not ArmKind.ANCHOR:
        return arm.engine.generate(requests)
    return _anchored(arm, requests, done)


def _anchored(arm: PreparedArm, requests: Sequence[Request], done: Callable[[str], ArmRecord]) -> Iterator[Generation]:
    assert isinstance(arm.engine, Anchoring)
    assert arm.planned.of is not None
    if not requests:
        return
    emitted = {(each.case_id, each.sample): each.tokens for each in done(arm.planned.of).requests}
    cases = {request.id: (key.case_id, key.sample) for key, request in arm.requests.items()}
    for request in requests:
        # the engine did not answer every request
        if cases[request.id] in emitted:
            yield arm.engine.anchor(request, emitted[cases[request.id]])
