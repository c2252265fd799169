"""The arm of a fault's arena over scripted models, clean or broken, and what it generates."""

from dataclasses import replace

from audit.records import ArmKind, ArmRecord, Level
from engine.backends.arm import ArmPlan, ModelSource
from engine.backends.scripted import VOCABULARY, open_models
from engine.rng import stream_of
from engine.trace import decode
from engine.types import Request
from tests.audit.checks.simulator import record

TIMES = ("draft_us", "verify_us")


def arm(arena, fault=None, proposer=True):
    """A backend; without the proposer it is the plain baseline."""
    names = ["draft", *(f"draft{i}" for i in range(1, arena.drafts))][: arena.drafts]
    sources = {"target": "scripted:1"} | {name: f"scripted:{2 + i}" for i, name in enumerate(names)}
    workshop = open_models({name: ModelSource(source) for name, source in sources.items()})
    if not proposer:
        return workshop.arm(ArmPlan(arena.protocol, rows=arena.rows))
    first, others = (names[0] if names else None), tuple(names[1:])
    return workshop.arm(
        ArmPlan(
            arena.protocol,
            arena.proposer,
            arena.gamma,
            first,
            arena.options,
            arena.rows,
            fault=fault,
            others=others,
        )
    )


def generate(arena, fault=None, count=24, proposer=True):
    """Generations by request: prompts of 3 to 6 tokens."""
    params = replace(arena.sampling, seed=5)
    prompts = [tuple((7 * i + j * (i + 3)) % VOCABULARY for j in range(3 + i % 4)) for i in range(count)]
    requests = [Request(f"r{i}", prompt, params, stream_of(f"r{i}")) for i, prompt in enumerate(prompts)]
    return {each.request.id: each for each in arm(arena, fault, proposer).generate(requests)}


def traces(generations):
    return [decode(generations[name].trace) for name in sorted(generations)]


def arm_record(generations, kind=ArmKind.CANDIDATE):
    told = tuple(record(trace) for trace in traces(generations))
    return ArmRecord(kind.value, kind, Level.L4, {}, told)
