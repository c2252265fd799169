"""The transcript test: certified on clean arms with enough prompts, a fault where any part is one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.transcript.check import CHECK, audited_positions, parts_of
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from tests.audit.checks.anchor_arms import anchor_arm, scripted_reference, simulated, world_reference
from tests.audit.checks.engine_arms import SAMPLED as ENGINE_SAMPLED
from tests.audit.checks.engine_arms import engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first

SHORT = replace(SAMPLED, max_new_tokens=12)
CHAIN = Setup(sampling=SHORT)
GREEDILY = Setup(Protocol.GREEDY, "one_hot", sampling=replace(GREEDY, max_new_tokens=12))
CLEAN = {
    "chain": CHAIN,
    "chain, deterministic draft": replace(CHAIN, draft="one_hot"),
    "gumbel": replace(CHAIN, protocol=Protocol.GUMBEL, draft="coupled"),
    "greedy": GREEDILY,
}


def judged(evidence, **overrides):
    return evaluate(CHECK, evidence, overrides)


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(CLEAN.values()), ids=CLEAN.keys())
def test_clean_arms_are_certified_within_what_so_many_prompts_can_show(setup):
    result = judged(simulated(world(1), setup, 60), margin=0.25)
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.n == 60
    assert result.bound == pytest.approx(result.detectable, rel=0.05)
    assert result.bound == result.details["certificate"]["eps_replay"] + result.details["certificate"]["eps_numeric"]
    json.dumps(asdict(result), allow_nan=False)


@pytest.mark.slow
def test_clean_arms_raise_no_alarm():
    setups = list(CLEAN.values())
    verdicts = [
        judged(simulated(world(seed), replace(setups[seed % 4], noise_seed=seed), 8, f"s{seed}")).verdict
        for seed in range(40)
    ]
    assert Verdict.FAULT not in verdicts


@pytest.mark.medium
def test_the_sentence_says_all_of_it():
    result = judged(simulated(world(1), CHAIN, 60), margin=0.25)
    for part in (
        "on workload",
        "build",
        "protocol chain",
        "60 positions, one per prompt",
        "confidence 99 %",
        "at most",
    ):
        assert part in result.summary
    assert "floor without speculation" in result.summary
    assert len(result.details["assumptions"]) == 4
    assert "that the record is honest" in result.details["not_claimed"]


FAULTS = {
    "lenient acceptance": ("lenient", "replay"),
    "draft by argmax, soft q recorded": ("argmax_draft", "q_contract"),
    "bonus from the wrong row": ("wrong_bonus_row", "replay"),
}


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "part"), fast_first(FAULTS.values()), ids=FAULTS.keys())
def test_a_broken_decoder_is_a_fault_of_the_part_that_sees_it(fault, part):
    result = judged(simulated(world(1), replace(CHAIN, fault=fault), 20))
    assert result.verdict is Verdict.FAULT
    assert any(each.message.startswith(f"{part}: ") for each in result.findings)


@pytest.mark.medium
def test_rows_that_are_not_the_references_are_a_fault_though_all_else_replays():
    evidence = simulated(world(1), CHAIN, 20)
    other = {ArmKind.ANCHOR: anchor_arm(evidence.candidate, world_reference(world(2)))}
    result = judged(replace(evidence, companions=other))
    assert result.verdict is Verdict.FAULT
    assert result.details["parts"]["replay"] == "certified"
    assert all(each.message.startswith("anchor: ") for each in result.findings)


@pytest.mark.parametrize(
    "fault", fast_first(["target_rows_shifted", "draft_from_bf16_logits", "number_reused_across_positions"])
)
@pytest.mark.slow
def test_faults_of_the_engine_are_faults(fault):
    def evidence(name):
        candidate = engine_arm(plan(fault=name), replace(ENGINE_SAMPLED, max_new_tokens=32), 24)
        return Evidence(candidate, companions={ArmKind.ANCHOR: anchor_arm(candidate, scripted_reference())})

    assert judged(evidence(None)).verdict is Verdict.INCONCLUSIVE
    assert judged(evidence(fault)).verdict is Verdict.FAULT


@pytest.mark.medium
def test_a_contradiction_is_a_fault():
    evidence = simulated(world(1), CHAIN, 8)
    trace = evidence.candidate.requests[2].trace
    broken = changed(evidence.candidate, 2, logprob=put(trace.logprob, 3, 0.0))
    result = judged(replace(evidence, candidate=broken))
    assert result.verdict is Verdict.FAULT
    assert result.findings[0].request == "case-2"


@pytest.mark.medium
def test_without_an_anchor_it_says_what_is_left():
    evidence = replace(simulated(world(1), CHAIN, 60), companions={})
    result = judged(evidence, margin=0.25)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "from the recorded p; whether that p is the target's was not measured" in result.summary
    assert result.details["missing"] == [
        "anchor: there is no anchor arm: the backend has no reference pass over given tokens"
    ]
    assert result.bound is None


@pytest.mark.medium
def test_few_prompts_are_no_certificate():
    result = judged(simulated(world(1), CHAIN, 10))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "more prompts are needed" in result.summary
    assert result.detectable > result.margin


@pytest.mark.medium
def test_drafts_without_numbers_are_missing():
    evidence = simulated(world(1), CHAIN, 60)
    for i, request in enumerate(evidence.candidate.requests):
        numbers = np.full_like(request.trace.node_uniform, np.nan)
        evidence = replace(evidence, candidate=changed(evidence.candidate, i, node_uniform=numbers))
    result = judged(evidence, margin=0.25)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert any(each.startswith("q_contract: ") for each in result.details["missing"])


@pytest.mark.medium
def test_evidence_without_random_numbers_gives_lower_bounds_only():
    clean = arm(world(1), CHAIN, 24)
    broken = arm(world(1), Setup(fault="argmax_draft"), 24)
    for level, bound in ((Level.L0, 0.0), (Level.L3, 0.0)):
        result = judged(Evidence(replace(clean, level=level)))
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.effect == bound
        assert result.bound is None
        assert "no upper bound follows" in result.summary
    shown = judged(Evidence(replace(broken, level=Level.L3)))
    assert shown.verdict is Verdict.INCONCLUSIVE
    assert shown.effect > 0.02
    assert {each["score"] for each in shown.details["observation"]["directions"]} == {"log p", "q / (p + q)"}


def test_lossy_arms_have_no_transcript_to_certify():
    clean = arm(world(1), CHAIN, 1)
    trace = clean.requests[0].trace
    lossy = replace(clean.requests[0], trace=replace(trace, header=replace(trace.header, lossless=False)))
    assert judged(Evidence(replace(clean, requests=(lossy,)))).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_one_position_per_prompt_is_audited_and_mismatches_count():
    evidence = simulated(world(1), replace(CHAIN, fault="lenient"), 40)
    same = replace(
        evidence.candidate,
        requests=tuple(
            replace(each, case_id=f"c{i % 20}", sample=i // 20) for i, each in enumerate(evidence.candidate.requests)
        ),
    )
    found = audited_positions(same, parts_of(Evidence(same), CHECK.defaults))
    assert found.positions == 20
    assert 0 < found.violations < 20
