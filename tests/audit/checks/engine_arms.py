"""Arms of the real engine over scripted models, clean or with a fault of the catalogue, as evidence."""

from __future__ import annotations

from dataclasses import replace

from audit.evidence.records import ArmKind, ArmRecord, Level, RequestRecord
from engine import faults
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import VOCABULARY, open_models
from engine.core.types import Protocol, Request, SamplingParams
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.support.scenarios import engine_spec

SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=64, seed=7)


def engine_arm(plan: EngineSpec, sampling: SamplingParams = SAMPLED, requests: int = 8, models: int = 1) -> ArmRecord:
    """An arm of `plan` over scripted models numbered from `models` on."""
    drafts = {name: f"scripted:{models + 1 + i}" for i, name in enumerate(plan.drafts)}
    shop = open_models({name: ModelSource(at) for name, at in {"target": f"scripted:{models}", **drafts}.items()})
    engine = shop.arm(plan)
    wanted = [
        Request(
            f"r{i}", tuple((i * 5 + j * (i + 2)) % VOCABULARY for j in range(3 + i % 4)), sampling, stream_of(f"r{i}")
        )
        for i in range(requests)
    ]
    records = [
        RequestRecord(
            request_id=each.request.id,
            case_id=each.request.id,
            sample=0,
            domain="chat",
            trace=decode(each.trace),
            tokens=each.tokens,
            text=each.text,
            finish_reason=each.finish_reason,
            latency_us=each.latency_us,
            intact=True,
        )
        for each in engine.generate(wanted)
    ]
    records.sort(key=lambda record: int(record.request_id[1:]))
    return ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, engine.effective_config(), tuple(records))


def plan(
    protocol: Protocol = Protocol.CHAIN, proposer: str | None = "draft_model", gamma: int = 4, **others
) -> EngineSpec:
    """A plan with one draft model where the proposer has one."""
    draft = "draft" if proposer == "draft_model" else None
    return EngineSpec(protocol, proposer, gamma if proposer else 0, **({"draft": draft} | others))


def arena_plan(name: str, broken: bool = True) -> EngineSpec:
    """The arm of a fault's arena, with the fault or without it."""
    return engine_spec(faults.load(name).scenario, name if broken else None)


def arena_arm(name: str, requests: int = 32, seed: int = 7, models: int = 1, broken: bool = True) -> ArmRecord:
    """An arm in the arena of a fault, with the fault or without it."""
    sampling = replace(faults.load(name).scenario.sampling, seed=seed)
    return engine_arm(arena_plan(name, broken), sampling, requests, models)
