"""Every fault breaks the claim it names, and nothing changes for those who do not ask for it."""

from dataclasses import replace

import numpy as np
import pytest

from engine import faults, verify
from engine.backends.arm import ArmPlan, ModelSource
from engine.backends.scripted import open_models
from engine.drafting import DraftContext, draw
from engine.errors import InvalidRequest
from engine.faults import EngineParts, break_parts
from engine.metrics import acceptance
from engine.registry import resolve
from engine.rng import Randomness
from engine.trace import decode
from engine.types import DraftRule, Protocol, QKind, Request, SamplingParams

CLAIMS = {"equality", "bitwise", "replay", "law", "acceptance", "closeness", "structure", "safety", "cost"}
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=40, seed=3)


def generate(fault, sampling, protocol=Protocol.CHAIN):
    workshop = open_models({"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    backend = workshop.arm(ArmPlan(protocol, "draft_model", 4, "draft", fault=fault))
    wanted = [Request(f"r{i}", (i, 2, 3), sampling, i) for i in range(12)]
    return {each.request.id: each for each in backend.generate(wanted)}


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_names_its_claim_and_its_origin(name):
    fault = resolve(faults.REGISTRY, name, "fault")
    assert fault.name == name
    assert fault.breaks in CLAIMS
    assert "#" in fault.upstream
    assert fault.apply.__module__.endswith(name) or name in fault.apply.__module__


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_changes_what_is_emitted_and_leaves_the_parts_it_was_given(name):
    parts = EngineParts(verify.load(Protocol.CHAIN), draw)
    broken = break_parts(name, parts)
    assert parts.draw is draw
    assert broken != parts
    clean, wrong = generate(None, SAMPLED), generate(name, SAMPLED)
    assert any(clean[key].tokens != wrong[key].tokens for key in clean)
    assert {key: each.tokens for key, each in generate(None, SAMPLED).items()} == {
        key: each.tokens for key, each in clean.items()
    }


def test_an_unknown_fault_is_refused():
    with pytest.raises(InvalidRequest, match="unknown fault"):
        break_parts("nonesuch", EngineParts(verify.load(Protocol.CHAIN), draw))


def context(temperature):
    return DraftContext((1, 2), 1, SamplingParams(temperature=temperature), (), Randomness(0, 0))


def test_the_argmax_draft_reports_a_q_that_it_did_not_draw_from():
    broken = break_parts("argmax_draft_soft_q", EngineParts(verify.load(Protocol.CHAIN), draw)).draw
    logits = np.array([0.0, 1.0, 0.5, 0.9])
    drawn = broken(DraftRule.INDEPENDENT, logits, context(1.0))
    assert (drawn.token, drawn.kind) == (1, QKind.FULL)
    assert drawn.q.max() < 0.5


def test_the_argmax_draft_is_invisible_at_temperature_zero():
    greedy = replace(SAMPLED, temperature=0.0)
    clean, wrong = generate(None, greedy), generate("argmax_draft_soft_q", greedy)
    assert {key: each.tokens for key, each in clean.items()} == {key: each.tokens for key, each in wrong.items()}


def test_the_argmax_draft_is_accepted_too_often():
    clean, wrong = (
        acceptance(decode(each.trace) for each in generate(fault, SAMPLED).values())
        for fault in (None, "argmax_draft_soft_q")
    )
    assert wrong.draft_acceptance_rate > clean.draft_acceptance_rate
