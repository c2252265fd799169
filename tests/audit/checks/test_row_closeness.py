"""Rows where no bits are promised: no fault of the target's rows ends with a pass, clean arms are certified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.anchor.row_closeness import CHECK
from audit.checks.base.interface import evaluate
from audit.evidence.records import UNREADABLE, ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from audit.runs.judge import arm_exit_code, judge_arm
from audit.selftest.run_arm import gather
from audit.suite.loader import load_suite
from tests.audit.checks.anchor_arms import anchor_arm, simulated, world_reference
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, world
from tests.support.readme_suite import FAULTS

CHAIN = Setup(sampling=replace(SAMPLED, max_new_tokens=16))
GREEDILY = Setup(sampling=replace(GREEDY, max_new_tokens=16))
FAST, HF = "numerics: fast", "loader: hf"
SUITE = """\
version: 1
name: unpromised
models:
  target: {{source: 'bundled:target', {how}}}
  draft: bundled:draft
workloads: [{{name: chat, prompts: 'suites:prompts/chat.jsonl', limit: 20}}]
sampling: {{max_new_tokens: 24}}
arms:
  - name: rejection
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: chain
    sampling: {{temperature: 0.7, top_p: 0.95}}
    {fault}
"""


def judged(evidence, **overrides):
    return evaluate(CHECK, evidence, overrides)


def with_noise(evidence: Evidence, place) -> Evidence:
    noise = replace(anchor_arm(evidence.baseline, world_reference(place)), kind=ArmKind.NOISE)
    return replace(evidence, companions={**evidence.companions, ArmKind.NOISE: noise})


def by_default(tmp_path, how: str, fault: str = ""):
    """The results of the suite's only arm, which names no checks."""
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.format(how=how, fault=f"fault: {fault}" if fault else ""))
    suite = load_suite(path)
    return judge_arm(gather(suite), suite.arms[0].judged).results


@pytest.mark.medium
@pytest.mark.parametrize("setup", [CHAIN, GREEDILY], ids=["sampled", "greedy"])
def test_clean_rows_are_certified_with_few_prompts(setup):
    place = world(1)
    result = judged(with_noise(simulated(place, setup, 12), place))
    assert result.verdict is Verdict.CERTIFIED
    assert result.n == 12 * 16
    assert result.details["noise_positions"] >= 100


@pytest.mark.medium
def test_noise_that_nobody_measured_certifies_nothing():
    evidence = simulated(world(1), CHAIN, 12)
    assert judged(replace(evidence, baseline=None)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
def test_an_answer_of_the_baseline_that_no_pass_can_follow_only_measures_no_noise():
    place = world(1)
    evidence = with_noise(simulated(place, CHAIN, 12), place)
    lost = evidence.companions[ArmKind.NOISE]
    header = replace(lost.requests[0].trace.header, facts={"error": {"kind": UNREADABLE, "message": "lost"}})
    failed = replace(lost.requests[0], trace=replace(lost.requests[0].trace, header=header))
    noise = replace(lost, requests=lost.requests[1:], failed=(failed,))
    assert noise.unreadable
    result = judged(replace(evidence, companions={**evidence.companions, ArmKind.NOISE: noise}))
    assert result.verdict is Verdict.CERTIFIED


@pytest.mark.medium
@pytest.mark.parametrize(
    ("spread", "expected"), [(0.001, Verdict.CERTIFIED), (0.3, Verdict.INCONCLUSIVE), (9, Verdict.FAULT)]
)
def test_a_baseline_with_the_candidates_fault_is_no_noise(spread, expected):
    """Both arms have the same other weights: the reference's rows differ from both."""
    place = world(1)
    moved = np.random.default_rng(3).normal(0, spread, place.target.shape)
    named = replace(place, target=place.target + moved)
    evidence = simulated(place, CHAIN, 12)
    anchor = anchor_arm(evidence.candidate, world_reference(named))
    result = judged(with_noise(replace(evidence, companions={ArmKind.ANCHOR: anchor}), named))
    assert result.verdict is expected, result.summary
    if expected is Verdict.INCONCLUSIVE:
        assert "more than rounding" in result.summary


@pytest.mark.medium
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_one_moved_row_is_a_fault_with_its_place(share):
    place = world(1)
    evidence = with_noise(simulated(place, CHAIN, 12), place)
    rows = evidence.candidate.requests[3].trace.logits.copy()
    rows[5, 0] += share
    result = judged(replace(evidence, candidate=changed(evidence.candidate, 3, logits=rows)))
    assert result.verdict is Verdict.FAULT
    assert [finding.request for finding in result.findings] == ["case-3"]
    assert "token 6" in result.findings[0].message


@pytest.mark.medium
def test_plain_decoding_that_is_further_away_than_rounding_excuses_nothing():
    """Another model behind candidate and baseline: each is as far from the reference as the other."""
    place = world(1)
    evidence = with_noise(simulated(place, CHAIN, 12), place)
    other = evidence.baseline
    for index, request in enumerate(other.requests):
        rows = request.trace.logits.copy()
        rows[:, 0] += 0.5
        other = changed(other, index, logits=rows)
    wrong = judged(replace(evidence, baseline=other))
    assert wrong.verdict is Verdict.INCONCLUSIVE
    assert "the engine runs another model, or computes in a lower precision" in wrong.summary
    assert judged(replace(evidence, baseline=other), most_noise=0.5).verdict is Verdict.CERTIFIED
    rows = evidence.candidate.requests[3].trace.logits.copy()
    rows[5] = 0.0
    rows[5, 0] = 50.0
    far = replace(evidence, baseline=other, candidate=changed(evidence.candidate, 3, logits=rows))
    assert judged(far).verdict is Verdict.FAULT


def in_half(evidence: Evidence) -> Evidence:
    effective = evidence.candidate.effective.with_fact("target", {"dtype": "bfloat16"})
    return replace(evidence, candidate=replace(evidence.candidate, effective=effective))


@pytest.mark.medium
def test_in_16_bits_rounding_is_judged_by_its_mean():
    place = world(1)
    evidence = with_noise(simulated(place, CHAIN, 12), place)

    def moved(by: float, every: int) -> Evidence:
        other = evidence.baseline
        for index, request in enumerate(other.requests):
            rows = request.trace.logits.copy()
            rows[::every, 0] += by
            other = changed(other, index, logits=rows)
        return replace(evidence, baseline=other)

    assert judged(moved(1.0, 8)).verdict is Verdict.INCONCLUSIVE
    assert judged(in_half(moved(1.0, 8))).verdict is Verdict.CERTIFIED
    everywhere = judged(in_half(moved(3.0, 1)))
    assert everywhere.verdict is Verdict.INCONCLUSIVE
    assert "on average" in everywhere.summary
    assert "half_noise allows 0.1" in everywhere.summary


@pytest.mark.medium
@pytest.mark.parametrize("how", [FAST, HF])
def test_clean_arms_in_bfloat16_are_certified(tmp_path, how):
    results = by_default(tmp_path, f"{how}, dtype: bfloat16")
    assert results["row_closeness"].verdict is Verdict.CERTIFIED
    assert 1e-3 < results["row_closeness"].details["baseline_from_reference"] < 0.1


@pytest.mark.slow
def test_noisy_clean_arms_raise_no_alarm():
    """40 arms with normal noise of 0.003 on every logit, and as much in the baseline."""
    for seed in range(40):
        place = world(seed)
        candidate, baseline = (
            arm(place, replace(CHAIN, noise=0.003, noise_seed=2), 8),
            arm(place, replace(CHAIN, noise=0.003, noise_seed=3, draft="none"), 8, kind=ArmKind.BASELINE),
        )
        anchor = anchor_arm(candidate, world_reference(place))
        evidence = with_noise(Evidence(candidate, baseline, None, {ArmKind.ANCHOR: anchor}), place)
        assert judged(evidence).verdict is Verdict.CERTIFIED


@pytest.mark.medium
@pytest.mark.parametrize("how", [FAST, HF])
def test_the_rows_of_a_clean_default_arm_are_looked_at_twice(tmp_path, how):
    results = by_default(tmp_path, how)
    assert results["row_closeness"].verdict is Verdict.CERTIFIED
    assert results["bitwise"].verdict is Verdict.NOT_RUN
    assert results["second_accounts"].verdict is Verdict.CERTIFIED
    assert results["second_accounts"].details["looked_at_twice"]["target rows"] == ["row_closeness"]
    assert Verdict.FAULT not in {result.verdict for result in results.values()}


@pytest.mark.medium
@pytest.mark.parametrize(("how", "fault"), [(FAST, FAULTS[0]), (HF, FAULTS[4])])
def test_a_fault_of_the_rows_ends_no_default_arm_with_a_pass(tmp_path, how, fault):
    results = by_default(tmp_path, how, fault)
    assert results["row_closeness"].verdict is Verdict.FAULT
    assert arm_exit_code(results.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [FAST, HF])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_the_rows_ends_with_a_pass(tmp_path, how, fault):
    results = by_default(tmp_path, how, fault)
    assert arm_exit_code(results.values()) == 1, {name: result.summary for name, result in results.items()}
