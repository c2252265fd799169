"""What holds for every fault of the catalogue; a new one is picked up by itself."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base import Verdict, evaluate
from audit.records import ArmKind, Evidence
from engine import faults, proposers, verify
from engine.errors import InvalidRequest
from engine.parts import EngineParts
from engine.trace import Trace
from engine.types import Protocol
from tests.engine.faults.arms import TIMES, arm, arm_record, generate, traces

CLAIMS = {"equality", "bitwise", "replay", "law", "acceptance", "closeness", "structure", "safety", "cost"}
PARTS = [each.name for each in dataclasses.fields(EngineParts)]
COLUMNS = [each.name for each in dataclasses.fields(Trace) if each.name not in ("header", *TIMES)]

REQUESTS = 8
MORE_REQUESTS = {"lenient_0_1_percent": 32, "trimmed_by_own_probability": 16}
"""Of 64 tokens each: what a rare fault, or a statistical check, needs."""
SEEN_BY = {
    "trimmed_by_own_probability": "law",
    "greedy_accepts_top2": "greedy_equality",
    "noise_keyed_by_draw": "coupled_equality",
}
"""The check that sees a fault, if it is not the replay, or that the fault is for."""
UNSEEN = {
    "trimmed_by_next_confidence": "what follows a token is unrelated to its rank in a scripted pair, and every order "
    "that the law check looks at is by rank or id; the exact law is compared below",
    "gamma_not_respected": "shorter drafts are a lossless choice; only the plan knows that more were asked for",
}
"""Faults that no check sees in their arena, and why."""


def clean_parts(protocol):
    return EngineParts(verifier=verify.load(protocol))


@functools.cache
def generations(name, broken):
    arena = faults.load(name).arena
    return generate(arena, name if broken else None, MORE_REQUESTS.get(name, REQUESTS))


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_says_what_it_is(name):
    fault = faults.load(name)
    assert fault.name == name
    assert fault.breaks in CLAIMS
    assert "#" in fault.upstream or fault.upstream.startswith("none known: ")
    assert "|" not in fault.upstream
    assert fault.arena.proposer in proposers.REGISTRY


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_replaces_the_parts_that_it_names_and_no_others(name):
    fault = faults.load(name)
    clean = clean_parts(fault.arena.protocol)
    before = {part: getattr(clean, part) for part in PARTS}
    broken = faults.break_parts(name, clean)
    assert {part: getattr(clean, part) for part in PARTS} == before
    assert {part for part in PARTS if getattr(broken, part) is not before[part]} == set(fault.parts)


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_arena_suits_the_fault(name):
    fault = faults.load(name)
    suits, arena = fault.suits, fault.arena
    assert arena.protocol in (suits.protocols or tuple(Protocol))
    assert suits.temperature in ("both", "greedy" if arena.sampling.greedy else "sampled")
    config = arm(arena, name).effective_config()
    assert suits.shape in (None, config["proposer_shape"])
    assert ("penalties" in suits.needs) <= (not arena.sampling.plain_scores)
    assert ("temperature" in suits.needs) <= (arena.sampling.temperature != 1.0)


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_effective_configuration_names_the_fault_and_nothing_else_changes(name):
    arena = faults.load(name).arena
    clean, broken = arm(arena).effective_config(), arm(arena, name).effective_config()
    assert (clean["fault"], broken["fault"]) == (None, name)
    assert {key for key in clean if clean[key] != broken[key]} == {"fault"}


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_changes_what_is_emitted_or_what_is_recorded(name):
    clean, broken = generations(name, False), generations(name, True)
    told = [key for key in clean if clean[key].tokens != broken[key].tokens]
    if faults.load(name).seen_from == "text":
        assert told
    pairs = zip(traces(clean), traces(broken), strict=True)
    assert told or any(not same(first, second) for first, second in pairs)


def same(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in COLUMNS)


def evidence(name, broken):
    """The arm, with a baseline and a control where the check compares with them."""
    candidate, arena = arm_record(generations(name, broken)), faults.load(name).arena
    if not SEEN_BY.get(name, "replay").endswith("equality"):
        return Evidence(candidate)
    count = MORE_REQUESTS.get(name, REQUESTS)
    baseline = arm_record(generate(arena, count=count, proposer=False), ArmKind.BASELINE)
    return Evidence(candidate, baseline, replace(baseline, kind=ArmKind.CONTROL))


@pytest.mark.parametrize("name", [name for name in faults.REGISTRY if name not in UNSEEN])
def test_a_check_sees_the_fault_and_calls_the_clean_arm_none(name):
    check = checks.load(SEEN_BY.get(name, "replay"))
    clean, broken = (evaluate(check, evidence(name, broken), {}).verdict for broken in (False, True))
    assert (clean is Verdict.FAULT, broken) == (False, Verdict.FAULT)


def test_the_lists_of_this_file_name_faults_that_there_are():
    assert {*SEEN_BY, *UNSEEN, *MORE_REQUESTS} <= set(faults.REGISTRY)


def test_an_unknown_fault_is_refused():
    with pytest.raises(InvalidRequest, match="unknown fault"):
        faults.break_parts("nonesuch", clean_parts(Protocol.CHAIN))


def test_a_fault_of_another_rule_is_refused():
    with pytest.raises(InvalidRequest, match="sqrt_acceptance has no place in the gumbel rule; it breaks: chain"):
        faults.break_parts("sqrt_acceptance", clean_parts(Protocol.GUMBEL))
