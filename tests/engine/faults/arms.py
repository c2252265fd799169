"""The arm of a fault's arena over its models, clean or broken, and what it generates."""

import functools
import json
from dataclasses import replace
from importlib.resources import files

from audit.evidence.records import ArmKind, ArmRecord, Level
from engine.backends import native, scripted
from engine.backends.engine_spec import ArmPlan, ModelSource
from engine.backends.interface import Prompt
from engine.backends.scripted import VOCABULARY
from engine.core.types import Request
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.audit.checks.simulator import record

TIMES = ("draft_us", "verify_us")


CHATS = files("suites").joinpath("prompts/chat.jsonl").read_text(encoding="utf-8")


@functools.cache
def workshop(models, named):
    """The arena's models, loaded once."""
    backend = native if models == "bundled" else scripted
    return backend.open_models({name: ModelSource(source) for name, source in named})


def arm(arena, fault=None, proposer=True):
    """A backend; without the proposer it is the plain baseline."""
    built = workshop(arena.models, tuple(arena.sources(1).items()))
    return built.arm(arena.plan(fault) if proposer else ArmPlan(arena.protocol, rows=arena.rows))


def prompts(arena, backend, count):
    """Prompts of 3 to 6 tokens for scripts; what bundled models were trained to answer."""
    if arena.models == "bundled":
        told = (CHATS.splitlines() * (1 + count // CHATS.count("\n")))[:count]
        return [backend.encode(Prompt(messages=tuple(json.loads(each)["messages"]))) for each in told]
    return [tuple((7 * i + j * (i + 3)) % VOCABULARY for j in range(3 + i % 4)) for i in range(count)]


def generate(arena, fault=None, count=24, proposer=True):
    """Generations by request."""
    params, backend = replace(arena.sampling, seed=5), arm(arena, fault, proposer)
    asked = enumerate(prompts(arena, backend, count))
    requests = [Request(f"r{i}", prompt, params, stream_of(f"r{i}")) for i, prompt in asked]
    return {each.request.id: each for each in backend.generate(requests)}


def traces(generations):
    return [decode(generations[name].trace) for name in sorted(generations)]


def arm_record(generations, kind=ArmKind.CANDIDATE, effective=None):
    told = tuple(record(trace) for trace in traces(generations))
    return ArmRecord(kind.value, kind, Level.L4, effective or {}, told)
