"""What holds for every fault of the catalogue; a new one is picked up by itself."""

import dataclasses

import pytest

from engine import faults, proposers, verify
from engine.backends.arm import ArmPlan, ModelSource
from engine.backends.scripted import open_models
from engine.errors import InvalidRequest
from engine.parts import EngineParts
from engine.types import Protocol

CLAIMS = {"equality", "bitwise", "replay", "law", "acceptance", "closeness", "structure", "safety", "cost"}
PARTS = [each.name for each in dataclasses.fields(EngineParts)]


def clean_parts(protocol):
    return EngineParts(verifier=verify.load(protocol))


def workshop(drafts):
    names = ["draft", *(f"draft{i}" for i in range(1, drafts))][:drafts]
    sources = {"target": "scripted:1"} | {name: f"scripted:{2 + i}" for i, name in enumerate(names)}
    return open_models({name: ModelSource(source) for name, source in sources.items()}), names


def arm(fault, broken=True):
    arena = fault.arena
    shop, names = workshop(arena.drafts)
    plan = ArmPlan(
        arena.protocol,
        arena.proposer,
        arena.gamma,
        names[0] if names else None,
        arena.options,
        arena.rows,
        fault=fault.name if broken else None,
        others=tuple(names[1:]),
    )
    return shop.arm(plan)


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_says_what_it_is(name):
    fault = faults.load(name)
    assert fault.name == name
    assert fault.breaks in CLAIMS
    assert "#" in fault.upstream or fault.upstream.startswith("none known: ")
    assert fault.arena.proposer in proposers.REGISTRY


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_replaces_the_parts_that_it_names_and_no_others(name):
    fault = faults.load(name)
    clean = clean_parts(fault.arena.protocol)
    before = {part: getattr(clean, part) for part in PARTS}
    broken = faults.break_parts(name, clean)
    assert {part: getattr(clean, part) for part in PARTS} == before
    assert tuple(part for part in PARTS if getattr(broken, part) is not before[part]) == fault.parts


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_arena_suits_the_fault(name):
    fault = faults.load(name)
    suits, arena = fault.suits, fault.arena
    assert arena.protocol in (suits.protocols or tuple(Protocol))
    assert suits.temperature in ("both", "greedy" if arena.sampling.greedy else "sampled")
    config = arm(fault).effective_config()
    assert suits.shape in (None, config["proposer_shape"])
    assert ("penalties" in suits.needs) <= (not arena.sampling.plain_scores)
    assert ("temperature" in suits.needs) <= (arena.sampling.temperature != 1.0)


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_effective_configuration_names_the_fault_and_nothing_else_changes(name):
    fault = faults.load(name)
    clean, broken = arm(fault, broken=False).effective_config(), arm(fault).effective_config()
    assert (clean["fault"], broken["fault"]) == (None, name)
    assert {key for key in clean if clean[key] != broken[key]} == {"fault"}


def test_an_unknown_fault_is_refused():
    with pytest.raises(InvalidRequest, match="unknown fault"):
        faults.break_parts("nonesuch", clean_parts(Protocol.CHAIN))
