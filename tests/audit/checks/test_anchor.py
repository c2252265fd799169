"""The anchor check: clean arms pass, rows of the wrong place do not, whatever the tokens say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.anchor.check import CHECK
from audit.checks.base.interface import evaluate
from audit.evidence.anchor import rows as anchor_rows
from audit.evidence.anchor.rows import row_at
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from audit.stats.distance import distances
from engine.core.types import Protocol, RecordLevel, SamplingParams
from tests.audit.checks.anchor_arms import anchor_arm, scripted_reference, simulated, world_reference
from tests.audit.checks.engine_arms import SAMPLED as ENGINE_SAMPLED
from tests.audit.checks.engine_arms import engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, world

FEW = replace(SAMPLED, max_new_tokens=16)
FEW_GREEDY = replace(GREEDY, max_new_tokens=16)
CHAIN = Setup(sampling=FEW)
GREEDILY = Setup(Protocol.GREEDY, "one_hot", sampling=FEW_GREEDY)


def judged(evidence, **overrides):
    return evaluate(CHECK, evidence, overrides)


def scripted(made, sampling=ENGINE_SAMPLED, requests=16):
    candidate = engine_arm(made, replace(sampling, max_new_tokens=24), requests)
    return Evidence(candidate, companions={ArmKind.ANCHOR: anchor_arm(candidate, scripted_reference())})


@pytest.mark.medium
def test_a_clean_arm_is_certified():
    result = judged(simulated(world(1), CHAIN, 150))
    assert result.verdict is Verdict.CERTIFIED
    assert result.n == 150
    assert result.effect < 1e-6
    assert result.effect < result.bound <= result.margin


@pytest.mark.slow
@pytest.mark.parametrize("setup", [CHAIN, GREEDILY], ids=["sampled", "greedy"])
def test_noisy_clean_arms_raise_no_alarm(setup):
    verdicts = []
    for seed in range(40):
        place = world(seed)
        quiet, loud = (replace(setup, noise=0.003, noise_seed=noise) for noise in (2, 3))
        candidate, baseline = arm(place, quiet, 8), arm(place, replace(loud, draft="none"), 8, kind=ArmKind.BASELINE)
        anchor = anchor_arm(candidate, world_reference(place))
        verdicts.append(judged(Evidence(candidate, baseline, None, {ArmKind.ANCHOR: anchor})).verdict)
    assert Verdict.FAULT not in verdicts


@pytest.mark.medium
@pytest.mark.parametrize("greedy", [False, True])
def test_one_row_of_another_place_is_named(greedy):
    evidence = simulated(world(1), GREEDILY if greedy else CHAIN, 20)
    rows = evidence.candidate.requests[3].trace.logits.copy()
    rows[5] = rows[4] + 3.0 * np.arange(rows.shape[1])[::-1]
    result = judged(replace(evidence, candidate=changed(evidence.candidate, 3, logits=rows)))
    assert result.verdict is Verdict.FAULT
    assert len(result.findings) == 1
    assert result.findings[0].request == "case-3"
    assert "token 6" in result.findings[0].message


@pytest.mark.medium
def test_rows_shifted_by_the_engine_are_found():
    clean, broken = scripted(plan()), scripted(plan(fault="target_rows_shifted"))
    assert judged(clean).verdict is Verdict.INCONCLUSIVE
    assert judged(clean).effect < 1e-12
    result = judged(broken)
    assert result.verdict is Verdict.FAULT
    assert result.effect > 0.3


@pytest.mark.medium
def test_a_small_distance_everywhere_is_a_fault_by_its_mean():
    place = world(1)
    other = replace(place, target=place.target * np.float32(0.7))
    candidate = arm(other, CHAIN, 80)
    evidence = Evidence(candidate, companions={ArmKind.ANCHOR: anchor_arm(candidate, world_reference(place))})
    result = judged(evidence, position_margin=1.0)
    assert result.verdict is Verdict.FAULT
    assert not result.findings
    assert result.details["lower_bound"] > result.margin


@pytest.mark.medium
def test_greedy_tokens_that_the_reference_would_not_choose():
    place = world(1, drift=3.0)
    assert judged(simulated(place, GREEDILY, 20)).verdict is Verdict.INCONCLUSIVE
    result = judged(simulated(place, replace(GREEDILY, fault="unverified"), 20))
    assert result.verdict is Verdict.FAULT
    assert "behind the reference's best" in result.findings[0].message


@pytest.mark.medium
def test_few_prompts_show_little():
    result = judged(simulated(world(1), CHAIN, 10))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.detectable > result.margin
    assert "this many prompts can show" in result.summary


@pytest.mark.medium
def test_repetitions_of_a_prompt_are_one_unit():
    evidence = simulated(world(1), CHAIN, 12)
    arms = (evidence.candidate, evidence.companions[ArmKind.ANCHOR])
    same, anchor = (
        replace(each, requests=tuple(replace(r, case_id=f"c{i % 4}", sample=i) for i, r in enumerate(each.requests)))
        for each in arms
    )
    assert judged(Evidence(same, companions={ArmKind.ANCHOR: anchor})).n == 4


@pytest.mark.medium
def test_short_rows_are_intervals_around_whole_ones():
    place = world(2, vocabulary=64)
    sampling = replace(FEW, temperature=0.8)
    candidate = arm(place, Setup(sampling=sampling), 4)
    short = arm(place, Setup(sampling=sampling, level=RecordLevel.TOPK), 4)
    shifted = ScaledWorld(place)
    whole = judged(Evidence(candidate, companions={ArmKind.ANCHOR: anchor_arm(candidate, shifted)}))
    part = judged(
        Evidence(short, companions={ArmKind.ANCHOR: anchor_arm(short, shifted, RecordLevel.TOPK)}), position_margin=1.0
    )
    assert part.effect >= whole.effect > 0.01


class ScaledWorld:
    """A reference whose logits are a tenth off."""

    def __init__(self, place):
        self.place, self.facts = place, {}

    def rows(self, tokens, first):
        return np.stack([0.9 * self.place.target[token] for token in tokens[first - 1 : -1]])


@pytest.mark.medium
def test_truncated_laws_need_whole_rows():
    sampling = SamplingParams(temperature=1.0, top_p=0.8, max_new_tokens=16, seed=7)
    whole, short = (
        judged(simulated(world(1), Setup(sampling=sampling, level=level), 40), margin=0.5)
        for level in (RecordLevel.FULL, RecordLevel.TOPK)
    )
    assert whole.verdict is Verdict.CERTIFIED
    assert short.verdict is Verdict.INCONCLUSIVE
    assert "need whole rows" in short.summary


def test_rows_at_both_levels_say_the_same():
    place = world(3)
    whole, short = (arm(place, Setup(sampling=FEW, level=level), 1) for level in (RecordLevel.FULL, RecordLevel.TOPK))
    for i in range(8):
        a, b = row_at(whole.requests[0].trace, i), row_at(short.requests[0].trace, i)
        np.testing.assert_allclose(a.plain[b.ids], b.plain, atol=1e-12)
        assert a.lead == pytest.approx(b.lead)


@pytest.mark.parametrize(
    "sampling", [FEW, replace(FEW, temperature=0.6, top_p=0.9), replace(FEW, frequency_penalty=0.3), FEW_GREEDY]
)
def test_rows_compared_together_are_those_compared_singly(sampling, monkeypatch):
    monkeypatch.setattr(anchor_rows, "BLOCK", 80)
    ours, theirs = (arm(place, Setup(sampling=sampling), 1).requests[0] for place in (world(3), world(4)))
    found = anchor_rows.compare(ours, theirs, 14)
    pairs = [(row_at(ours.trace, i), row_at(theirs.trace, i)) for i in range(14)]
    assert found.lead.tolist() == [b.lead for _, b in pairs]
    assert found.law.tolist() == [float(distances(a.law[None], b.law[None]).high[0]) for a, b in pairs]
    assert found.plain.tolist() == [float(distances(a.plain[None], b.plain[None]).low[0]) for a, b in pairs]
    assert found.truncated


def test_what_cannot_be_compared_is_no_pass():
    evidence = simulated(world(1), CHAIN, 3)
    assert judged(replace(evidence, companions={})).verdict is Verdict.NOT_RUN
    other = simulated(world(2), CHAIN, 3).companions
    assert judged(replace(evidence, companions=other)).verdict is Verdict.INCONCLUSIVE
    low = replace(evidence.candidate, level=Level.L1)
    assert judged(replace(evidence, candidate=low)).verdict is Verdict.NOT_RUN
    rows = evidence.candidate.requests[0].trace.logits.copy()
    rows[2, 3] = np.inf
    assert judged(replace(evidence, candidate=changed(evidence.candidate, 0, logits=rows))).verdict is (
        Verdict.INCONCLUSIVE
    )
