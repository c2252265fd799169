"""Arms that record their text as it leaves, over scripted models, for tests of the checks that read streams."""

from __future__ import annotations

import functools
from dataclasses import replace

from audit.evidence.records import ArmKind, ArmRecord, Evidence
from engine.core.types import Protocol, SamplingParams
from engine.faults.interface import Scenario
from engine.faults.streams import PAIRS
from engine.stream.interface import StreamSpec, filter_spec
from tests.engine.faults.arms import arm, arm_record, generate

LETTERS = {"categories": {"pairs": list(PAIRS)}, "whole_words": False}
ENDS = {"categories": {"end": ["qb", "zz", "tdn"]}, "whole_words": False}
FILTERS = StreamSpec(
    (filter_spec("patterns", "redact", "output", LETTERS), filter_spec("patterns", "stop", "output", ENDS))
)
SCENARIOS = {
    "gumbel": Scenario(Protocol.GUMBEL, stream=FILTERS),
    "chain": Scenario(Protocol.CHAIN, stream=FILTERS),
    "stopped": Scenario(
        Protocol.GUMBEL, sampling=SamplingParams(temperature=1.0, stop=("kk", "po", "ev")), stream=StreamSpec()
    ),
    "plain": Scenario(Protocol.GUMBEL),
}
REQUESTS = 8


def recorded(scenario: Scenario, fault: str | None, plain: bool) -> ArmRecord:
    effective = arm(scenario, fault, not plain).effective_config()
    made = generate(scenario, fault, REQUESTS, proposer=not plain)
    return arm_record(made, ArmKind.BASELINE if plain else ArmKind.CANDIDATE, effective)


@functools.cache
def evidence(name: str, fault: str | None = None) -> Evidence:
    """A candidate and its baseline."""
    scenario = SCENARIOS[name]
    return Evidence(recorded(scenario, fault, False), recorded(scenario, None, True))


def with_facts(found: Evidence, change, request: int = 0) -> Evidence:
    """The evidence with other facts in one request's header; `change` takes and gives the facts."""
    old = found.candidate.requests[request]
    header = replace(old.trace.header, facts=change(dict(old.trace.header.facts)))
    new = replace(old, trace=replace(old.trace, header=header))
    listed = found.candidate.requests
    candidate = replace(found.candidate, requests=(*listed[:request], new, *listed[request + 1 :]))
    return replace(found, candidate=candidate)


def with_stream(found: Evidence, request: int = 0, **changed) -> Evidence:
    """The evidence with other entries in one request's stream."""
    return with_facts(found, lambda facts: {**facts, "stream": {**facts["stream"], **changed}}, request)


def stream(found: Evidence, request: int = 0):
    return found.candidate.requests[request].trace.header.facts["stream"]


def decided(found: Evidence) -> int:
    """The first request with two decisions or more."""
    return next(i for i in range(len(found.candidate.requests)) if len(stream(found, i)["decisions"]) >= 2)
