"""Runs prepared arms in memory and builds the evidence for checks without a store.

The records equal those that the store would return: requests in its order,
unanswered ones apart, and the lowest level of all requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from audit.runs.arms import evidence_for
from audit.runs.generate import generations
from audit.runs.prepare import PreparedArm
from audit.store import RequestKey
from engine.core.types import FinishReason, Generation
from engine.record.trace import decode


def candidate_of(arms: Sequence[PreparedArm]) -> PreparedArm:
    """Return the one arm that is judged."""
    return next(arm for arm in arms if arm.planned.kind is ArmKind.CANDIDATE)


def all_evidence(arms: Sequence[PreparedArm]) -> Evidence:
    """Run every arm, in order. Raises EngineError: an arm cannot continue."""
    done: dict[str, ArmRecord] = {}
    for arm in arms:
        done[arm.planned.name] = run_arm(arm, done)
    return evidence_of(arms, done)


def evidence_of(arms: Sequence[PreparedArm], done: Mapping[str, ArmRecord]) -> Evidence:
    """Return the candidate with its comparison arms; every arm has run."""
    return evidence_for(candidate_of(arms).planned.links, [arm.planned.links for arm in arms], done.__getitem__)


def run_arm(arm: PreparedArm, done: Mapping[str, ArmRecord]) -> ArmRecord:
    """Run one arm; a reading arm gets its candidate's output from `done`.

    Raises:
        EngineError: the arm cannot continue.
    """
    return arm_record(arm, made_by(arm, done))


def made_by(arm: PreparedArm, done: Mapping[str, ArmRecord]) -> Iterator[Generation]:
    """The generations of an arm's requests, in the engine's order; raises as `run_arm`."""
    arm.engine.forget()
    return generations(arm, list(arm.requests.values()), done.__getitem__)


def arm_record(arm: PreparedArm, made: Iterable[Generation]) -> ArmRecord:
    """The record of an arm whose requests came out so. Raises EngineError: the arm cannot continue."""
    keys = {request.id: key for key, request in arm.requests.items()}
    records = [_record(arm, keys[item.request.id], item) for item in made]
    records.sort(key=lambda item: (item.case_id, item.sample))
    failed = tuple(record for record in records if record.finish_reason is FinishReason.ERROR)
    refused = tuple(record for record in records if record.finish_reason is FinishReason.FILTER and not record.tokens)
    lost = {item.request_id for item in (*failed, *refused)}
    answered = tuple(record for record in records if record.request_id not in lost)
    level = min([arm.level, *(Level(item.trace.header.facts.get("level", Level.L4)) for item in answered)])
    return ArmRecord(arm.planned.name, arm.planned.kind, level, arm.effective, answered, failed, refused)


def _record(arm: PreparedArm, key: RequestKey, generation: Generation) -> RequestRecord:
    trace = decode(generation.trace)
    return RequestRecord(
        request_id=generation.request.id,
        case_id=key.case_id,
        sample=key.sample,
        domain=arm.domain(key.case_id),
        trace=trace,
        tokens=trace.tokens,
        text=generation.text,
        finish_reason=generation.finish_reason,
        latency_us=generation.latency_us,
        intact=True,
    )
