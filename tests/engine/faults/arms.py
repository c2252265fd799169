"""The arm of a fault's arena over its models, clean or broken, and what it generates."""

import dataclasses
import functools
import json
from dataclasses import replace
from importlib.resources import files

import numpy as np

from audit.evidence.records import ArmKind, ArmRecord, Level
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native import backend as native
from engine.backends.native import scripted
from engine.backends.native.scripted import TOOLS, VOCABULARY
from engine.backends.neighbour import Beside, NeighbourEngine
from engine.core.types import Request, ToolOffer
from engine.record.effective import Effective
from engine.record.trace import Trace, decode
from engine.sampling.rng import stream_of
from tests.audit.checks.simulator import record
from tests.support.scenarios import engine_spec

TIMES = ("draft_us", "verify_us")
COLUMNS = [each.name for each in dataclasses.fields(Trace) if each.name not in ("header", *TIMES)]


CHATS = files("suites").joinpath("prompts/chat.jsonl").read_text(encoding="utf-8")


@functools.cache
def backend(models, named):
    """The arena's models, loaded once."""
    engine = native if models == "bundled" else scripted
    return engine.open_models({name: ModelSource(source) for name, source in named})


def arm(scenario, fault=None, proposer=True):
    """A backend; without the proposer it is the plain baseline."""
    built = backend(scenario.models, tuple(scenario.sources(1).items()))
    plain = EngineSpec(scenario.protocol, rows=scenario.rows, stream=scenario.stream)
    spec = engine_spec(scenario, fault) if proposer else plain
    engine = built.arm(spec)
    return engine if spec.beside is None else NeighbourEngine(engine, Beside(spec.beside))


def prompts(scenario, engine, count):
    """Prompts of the scenario's lengths for scripts; what bundled models were trained to answer."""
    if scenario.models == "bundled":
        told = (CHATS.splitlines() * (1 + count // CHATS.count("\n")))[:count]
        return [engine.encode(Prompt(messages=tuple(json.loads(each)["messages"]))) for each in told]
    least, lengths, begin = scenario.prompt.least, 1 + scenario.prompt.most - scenario.prompt.least, scenario.shared
    made = [tuple((7 * i + j * (i + 3)) % VOCABULARY for j in range(least + i % lengths)) for i in range(count)]
    return [(*range(begin), *prompt[begin:]) for prompt in made]


def generate(scenario, fault=None, count=24, proposer=True):
    """Generations by request."""
    params, engine = replace(scenario.sampling, seed=5), arm(scenario, fault, proposer)
    asked = enumerate(prompts(scenario, engine, count))
    tools = ToolOffer(TOOLS) if scenario.tools else None
    requests = [Request(f"r{i}", prompt, params, stream_of(f"r{i}"), tools) for i, prompt in asked]
    return {each.request.id: each for each in engine.generate(requests)}


def traces(generations):
    return [decode(generations[name].trace) for name in sorted(generations)]


def arm_record(generations, kind=ArmKind.CANDIDATE, effective=None):
    texts = [generations[name].text for name in sorted(generations)]
    told = tuple(replace(record(trace), text=text) for trace, text in zip(traces(generations), texts, strict=True))
    return ArmRecord(kind.value, kind, Level.L4, effective or Effective(), told)


def same(first, second):
    """Whether two traces agree in everything but their times."""
    columns = all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in COLUMNS)
    return columns and first.header == second.header
