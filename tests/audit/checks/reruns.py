"""Candidates with companion arms, from the simulator and from the real engine over scripted models."""

from __future__ import annotations

from dataclasses import replace

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from engine import faults
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import VOCABULARY, open_models
from engine.core.types import Protocol, Request
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.audit.checks.engine_arms import arena_plan
from tests.audit.checks.simulator import Setup, arm, record

RERUNS = (ArmKind.REPEAT, ArmKind.ALONE, ArmKind.REVERSED)


def simulated(world, setup: Setup, requests=16, **companions: Setup) -> Evidence:
    """The candidate of `setup`, a clean baseline and control, and companions, by default unchanged ones."""
    plain = replace(setup, draft="none", fault="")
    kinds = {ArmKind(name): other for name, other in companions.items()} or dict.fromkeys(RERUNS, setup)
    return Evidence(
        arm(world, setup, requests),
        arm(world, plain, requests, kind=ArmKind.BASELINE),
        arm(world, replace(plain, noise=1e-4, noise_seed=1), requests, kind=ArmKind.CONTROL),
        {kind: arm(world, other, requests, kind=kind) for kind, other in kinds.items()},
    )


def engine_evidence(
    plan: EngineSpec, sampling, requests=8, kinds=RERUNS, models=1, other_gamma=2, prompts=None, samples=1
) -> Evidence:
    """The candidate of `plan`, a plain baseline and control, and companions, shaped as `audit.runs.arms` does."""
    drafts = {name: f"scripted:{models + 1 + i}" for i, name in enumerate(plan.drafts)}
    shop = open_models({name: ModelSource(at) for name, at in {"target": f"scripted:{models}", **drafts}.items()})
    wanted = _requests(sampling, prompts or requests, samples)

    def made(kind, plan, wanted=wanted):
        engine = shop.arm(plan)
        generated = list(engine.generate(wanted))
        records = [replace(record(decode(each.trace)), latency_us=each.latency_us) for each in generated]
        records = [_keyed(each) for each in records]
        records.sort(key=lambda each: (each.case_id, each.sample))
        return ArmRecord(str(kind), kind, Level.L4, engine.effective_config(), tuple(records))

    shapes = {
        ArmKind.REPEAT: (plan, wanted),
        ArmKind.ALONE: (replace(plan, rows=1), wanted),
        ArmKind.REVERSED: (plan, wanted[::-1]),
        ArmKind.OTHER_GAMMA: (replace(plan, gamma=other_gamma), wanted),
    }
    plain = EngineSpec(Protocol.GREEDY if sampling.greedy else Protocol.GUMBEL, rows=plan.rows)
    return Evidence(
        made(ArmKind.CANDIDATE, plan),
        made(ArmKind.BASELINE, plain),
        made(ArmKind.CONTROL, replace(plain, rows=1)),
        {kind: made(kind, *shapes[kind]) for kind in kinds},
    )


def _keyed(each):
    case, _, sample = each.request_id.partition("#")
    return replace(each, case_id=case, sample=int(sample or 0))


def _requests(sampling, prompts, samples):
    every = []
    for i in range(prompts):
        prompt = tuple((7 * i + j * (i + 3)) % VOCABULARY for j in range(3 + i % 4))
        for sample in range(samples):
            name = f"r{i:03d}#{sample}"
            every.append(Request(name, prompt, sampling, stream_of(name)))
    return every


def arena_evidence(name: str, requests=8, broken=True, **options) -> Evidence:
    """Evidence from the arena of a fault of the catalogue, with the fault or without it."""
    sampling = replace(faults.load(name).scenario.sampling, seed=7)
    return engine_evidence(arena_plan(name, broken), sampling, requests, **options)
