"""What the argmax draft changes, and what it leaves alone."""

from dataclasses import replace

import numpy as np
import pytest

from engine import verify
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import open_models
from engine.core.types import DraftRule, Protocol, QKind, Request, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults import break_parts
from engine.record.metrics import acceptance
from engine.record.trace import decode
from engine.sampling.draw import DraftContext
from engine.sampling.rng import Randomness

CLAIMS = {"equality", "bitwise", "replay", "law", "acceptance", "closeness", "structure", "safety", "cost"}
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=40, seed=3)


def generate(fault, sampling, protocol=Protocol.CHAIN):
    backend = open_models({"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    engine = backend.arm(EngineSpec(protocol, "draft_model", 4, "draft", fault=fault))
    wanted = [Request(f"r{i}", (i, 2, 3), sampling, i) for i in range(12)]
    return {each.request.id: each for each in engine.generate(wanted)}


def context(temperature):
    return DraftContext((1, 2), 1, SamplingParams(temperature=temperature), (), Randomness(0, 0))


def test_the_argmax_draft_reports_a_q_that_it_did_not_draw_from():
    broken = break_parts("argmax_draft_soft_q", EngineParts(verifier=verify.load(Protocol.CHAIN))).draw
    logits = np.array([0.0, 1.0, 0.5, 0.9])
    drawn = broken(DraftRule.INDEPENDENT, logits, context(1.0))
    assert (drawn.token, drawn.kind) == (1, QKind.FULL)
    assert drawn.q.max() < 0.5


@pytest.mark.medium
def test_the_argmax_draft_is_invisible_at_temperature_zero():
    greedy = replace(SAMPLED, temperature=0.0)
    clean, wrong = generate(None, greedy), generate("argmax_draft_soft_q", greedy)
    assert {key: each.tokens for key, each in clean.items()} == {key: each.tokens for key, each in wrong.items()}


@pytest.mark.medium
def test_the_argmax_draft_is_accepted_too_often():
    clean, wrong = (
        acceptance(decode(each.trace) for each in generate(fault, SAMPLED).values())
        for fault in (None, "argmax_draft_soft_q")
    )
    assert wrong.draft_acceptance_rate > clean.draft_acceptance_rate
