"""Lengths of drafts against what is declared: no false alarm over any proposer, and a fault where one is short."""

from dataclasses import replace

import pytest
import torch

from audit.checks.accounting.check import CHECK
from audit.checks.accounting.rules import length_faults
from audit.checks.base.interface import evaluate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.types import Protocol, Request, SamplingParams
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import ProposerParts, SteadyDrafts
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.audit.checks.engine_arms import arena_arm, engine_arm, plan
from tests.engine import build
from tests.engine.build import Setup, target_script
from tests.engine.heads import tiny
from tests.support import head_cases as with_heads
from tests.support import proposer_cases as without
from tests.support.cases import every_case
from tests.support.tiers import fast_first

STEADY = {
    "cascade",
    "dflash",
    "draft_model",
    "eagle",
    "eagle3",
    "early_exit",
    "layer_skip",
    "medusa",
    "mlp_speculator",
    "mtp",
    "online",
}
"""Proposers that say how long their drafts are, where they draft chains."""
SAMPLED = SamplingParams(temperature=0.8, seed=3)
WITHOUT = [(case, protocol) for case, protocol in without.PAIRS if protocol is not Protocol.GREEDY]
WITH = [(case, protocol) for case, protocol in with_heads.PAIRS if protocol is not Protocol.GREEDY]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def ragged(params=SAMPLED):
    """Prompts of one token to five, lengths from 1 to 28 tokens."""
    prompts = [tuple((3 * i + j) % 8 for j in range(1 + i % 5)) for i in range(10)]
    asked = [replace(params, max_new_tokens=1 + 9 * i % 28) for i in range(10)]
    return [
        Request(f"r{i}", prompt, each, stream_of(f"r{i}"))
        for i, (prompt, each) in enumerate(zip(prompts, asked, strict=True))
    ]


def steady(context):
    return Effective(gamma=4, steady_drafts=SteadyDrafts(context))


def faults_of(loop, gamma, steady):
    traces = [decode(each.trace) for each in loop.run(ragged())]
    return [fault for trace in traces for fault in length_faults(trace, Effective(gamma=gamma, steady_drafts=steady))]


def loop_of(kind, protocol, gamma):
    head = kind in tiny.HEADS
    setup = Setup(kind) if head else without.setup_of(kind)
    return (tiny if head else build).make_loop(replace(setup, protocol=protocol, rows=3, gamma=gamma, eos_ids=(5,)))


@pytest.mark.parametrize("gamma", fast_first([4, 1, 9]))
@pytest.mark.slow
def test_no_proposer_breaks_what_it_declares(gamma):
    """Gammas below and above what heads and blocks can give, ends inside drafts, prompts of one token."""
    with every_case() as case:
        for kind, protocol in WITHOUT + WITH:
            with case(f"{kind}, {protocol}"):
                loop = loop_of(kind, protocol, gamma)
                assert not faults_of(loop, gamma, loop._proposer.facts.steady)


def test_these_declare_it():
    said = {tiny.HEADS[case][0] for case in with_heads.CASES if tiny.made(case)[0].facts.steady}
    said |= {
        without.CASES[case][0] for case in without.KINDS if without.made(case, without.DraftRule.COUPLED).facts.steady
    }
    assert said == STEADY
    assert said < set(proposers.REGISTRY)


@pytest.mark.medium
@pytest.mark.parametrize("case", ["draft_model", "eagle3", "medusa", "dflash"])
def test_a_longer_draft_would_have_been_due(case):
    """The rule looks at something: of a longer chain declared, every arm falls short."""
    head = case in tiny.HEADS
    loop = (tiny if head else build).make_loop(Setup(case, rows=3, gamma=2))
    found = faults_of(loop, 3, SteadyDrafts(512))
    assert len(found) > 10
    assert "2 tokens were drafted where 3 were due, gamma is 3" in {each.message for each in found}


@pytest.mark.parametrize("context", [5, 9, 17])
def test_nothing_is_due_beyond_the_draft_s_context(context):
    loop = build.make_loop(Setup(rows=3, gamma=4))
    draft = ScriptedModel(target_script(Setup()), 8, context=context)
    rule = verify.load(Protocol.CHAIN).facts.draft_rule
    parts = ProposerParts(3, 512, rule, without.draw, (), draft)
    loop._proposer = proposers.build("draft_model", parts)
    assert loop._proposer.facts.steady == SteadyDrafts(context)
    traces = [decode(each.trace) for each in loop.run(ragged())]
    assert not [fault for each in traces for fault in length_faults(each, steady(context))]
    assert [fault for each in traces for fault in length_faults(each, steady(512))]


@pytest.mark.medium
def test_a_rule_that_stops_early_declares_nothing():
    kept = plan(options={"stop_below": 0.3})
    arm = engine_arm(kept)
    assert arm.effective.steady_drafts is None
    assert evaluate(CHECK, Evidence(arm), {}).verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_half_of_gamma_is_seen_in_every_request():
    broken = evaluate(CHECK, Evidence(arena_arm("gamma_not_respected", 8)), {})
    assert (broken.verdict, broken.effect) == (Verdict.FAULT, 1.0)
    assert "2 tokens were drafted where 4 were due, gamma is 4" in broken.findings[0].message
    clean = evaluate(CHECK, Evidence(arena_arm("gamma_not_respected", 8, broken=False)), {})
    assert clean.verdict is Verdict.CERTIFIED
    assert clean.details["steady_drafts"]


@pytest.mark.parametrize(
    ("told", "steady"),
    [
        ({}, None),
        ({"steady_drafts": None}, None),
        ({"steady_drafts": "yes"}, None),
        ({"steady_drafts": {"context": True}}, None),
        ({"steady_drafts": {"context": 64, "most": None}}, SteadyDrafts(64)),
        ({"steady_drafts": {"context": 64, "most": 3}}, SteadyDrafts(64, 3)),
    ],
)
def test_where_the_arm_does_not_say_nothing_is_said(told, steady):
    read = Effective.from_json(told | {"gamma": 4})
    assert (read.gamma, read.steady_drafts) == (4, steady)
    assert Effective.from_json(told).gamma is None
