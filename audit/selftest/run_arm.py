"""A suite of one candidate, run from beginning to end in memory: the evidence that its checks would see.

The same planning, preparation and engine as `audit run`, without a store. Knows
nothing about faults and verdicts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from audit.arms import PlannedArm
from audit.prepare import PreparedArm, build_arms, effective_config, sources
from audit.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from audit.store import RequestKey
from audit.suite import Suite
from engine.backends import open_workshop
from engine.backends.arm import ModelSource, Workshop
from engine.backends.base import Anchoring
from engine.trace import decode
from engine.types import Generation


def gather(suite: Suite) -> Evidence:
    """Run the candidate, its baseline, its control and its companions.

    Raises:
        EngineError: the engine cannot run an arm.
    """
    arms = build_arms(suite, _workshop(suite))
    done: dict[str, ArmRecord] = {}
    for arm in arms:
        done[arm.planned.name] = _run(arm, done)
    plan = next(arm.planned for arm in arms if arm.planned.kind is ArmKind.CANDIDATE)
    return Evidence(
        candidate=done[plan.name],
        baseline=_known(done, plan.baseline),
        control=_known(done, plan.control),
        companions=_companions([arm.planned for arm in arms], done),
    )


def alone(suite: Suite) -> Evidence:
    """The candidate without anything beside it, for what needs nothing else.

    Raises:
        EngineError: the engine cannot run it.
    """
    plan = next(arm for arm in build_arms(suite, _workshop(suite)) if arm.planned.kind is ArmKind.CANDIDATE)
    return Evidence(_run(plan, {}))


def _workshop(suite: Suite) -> Workshop:
    if suite.backend == "scripted":
        return open_workshop(suite.backend, sources(suite))
    return _loaded(suite.backend, tuple(sources(suite).items()))


@functools.lru_cache(maxsize=4)
def _loaded(backend: str, named: tuple[tuple[str, ModelSource], ...]) -> Workshop:
    """Models with weights take seconds to load, and are the same for every seed."""
    return open_workshop(backend, dict(named))


def _known(done: Mapping[str, ArmRecord], name: str | None) -> ArmRecord | None:
    return None if name is None else done[name]


def _companions(planned: Sequence[PlannedArm], done: Mapping[str, ArmRecord]) -> dict[ArmKind, ArmRecord]:
    return {arm.kind: done[arm.name] for arm in planned if arm.of is not None}


def _run(arm: PreparedArm, done: Mapping[str, ArmRecord]) -> ArmRecord:
    keys = {request.id: key for key, request in arm.requests.items()}
    records = (_record(arm, keys[each.request.id], each) for each in _generations(arm, done))
    # what a store gives back is ordered by case and sample
    ordered = sorted(records, key=lambda each: (each.case_id, each.sample))
    anchor = arm.planned.kind is ArmKind.ANCHOR
    level = Level.L2 if anchor else Level(arm.backend.capabilities().level)
    return ArmRecord(arm.planned.name, arm.planned.kind, level, effective_config(arm), tuple(ordered))


def _generations(arm: PreparedArm, done: Mapping[str, ArmRecord]) -> Iterator[Generation]:
    if arm.planned.kind is not ArmKind.ANCHOR:
        yield from arm.backend.generate(list(arm.requests.values()))
        return
    assert isinstance(arm.backend, Anchoring)
    assert arm.planned.of is not None
    emitted = {(each.case_id, each.sample): each.tokens for each in done[arm.planned.of].requests}
    for key, request in arm.requests.items():
        yield arm.backend.anchor(request, emitted[key.case_id, key.sample])


def _record(arm: PreparedArm, key: RequestKey, generation: Generation) -> RequestRecord:
    trace = decode(generation.trace)
    return RequestRecord(
        request_id=generation.request.id,
        case_id=key.case_id,
        sample=key.sample,
        domain=arm.domains[key.case_id],
        trace=trace,
        tokens=trace.tokens,
        text=generation.text,
        finish_reason=generation.finish_reason,
        latency_us=generation.latency_us,
        intact=True,
    )
