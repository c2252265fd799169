from dataclasses import replace

import numpy as np
import pytest

from audit.checks import seed
from audit.checks.base.interface import evaluate
from audit.evidence.divergence.rerun import compare, offer
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from engine.backends.engine_spec import EngineSpec
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import Effective
from tests.audit.checks.engine_arms import plan
from tests.audit.checks.reruns import RERUNS, arena_evidence, engine_evidence, simulated
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, changed, world
from tests.support.tiers import fast_first, slow_unless

SETUPS = {
    "chain": Setup(),
    "gumbel": Setup(Protocol.GUMBEL, "coupled"),
    "greedy": Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY),
}
TARGET = world(6)


def verdict(evidence, **params):
    return evaluate(seed.CHECK, evidence, params)


def diverge(arm, request, index, **columns):
    """Another token there in one request of a companion."""
    old = arm.requests[request]
    tokens = list(old.tokens)
    tokens[index] = (tokens[index] + 1) % 16
    made = changed(arm, request, token=np.array(tokens, dtype=np.uint32), **columns)
    requests = list(made.requests)
    requests[request] = replace(requests[request], tokens=tuple(tokens))
    return replace(made, requests=tuple(requests))


def with_companion(evidence, kind, arm):
    return replace(evidence, companions={**evidence.companions, kind: arm})


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(SETUPS.values()), ids=SETUPS.keys())
def test_the_same_tokens_are_certified(setup):
    result = verdict(simulated(TARGET, setup))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.n == 16
    assert result.bound == pytest.approx(1 - 0.01 ** (1 / 16))


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(SETUPS.values()), ids=SETUPS.keys())
@pytest.mark.parametrize("kind", RERUNS)
def test_a_difference_names_the_arm_request_and_step(setup, kind):
    evidence = simulated(TARGET, setup)
    index = int(np.argmax(evidence.candidate.requests[3].trace.margin[:40]))
    broken = with_companion(evidence, kind, diverge(evidence.companions[kind], 3, index))
    result = verdict(broken)
    assert result.verdict is Verdict.FAULT, result.summary
    assert str(kind) in result.summary
    assert [each.request for each in result.findings] == ["case-3"]
    assert result.details[str(kind)]["differ"]["real"] == 1


@pytest.mark.medium
@pytest.mark.parametrize("name", slow_unless(["chain", "gumbel"], ["chain"]))
def test_other_seeds_are_not_compared_as_the_same(name):
    other = replace(SETUPS[name], sampling=replace(SAMPLED, seed=8))
    result = verdict(simulated(TARGET, SETUPS[name], repeat=other, alone=other, reversed=other))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "another seed" in result.summary


@pytest.mark.medium
def test_numerical_noise_is_no_fault():
    """Greedy and shared noise: a choice whose lead is within the noise between two plain runs."""
    setup = SETUPS["greedy"]
    evidence = simulated(TARGET, setup)
    margins = np.stack([each.trace.margin for each in evidence.baseline.requests])
    request, index = (int(i) for i in np.unravel_index(np.argmin(margins), margins.shape))
    noisy = evidence.baseline.requests[0].trace.margin.copy()
    noisy[0] += margins.min() + 0.01
    evidence = replace(evidence, control=changed(evidence.baseline, 0, margin=noisy))
    companion = evidence.companions[ArmKind.ALONE]
    second = int(np.argsort(-companion.requests[request].trace.logits[index], kind="stable")[1])
    old = companion.requests[request]
    tokens = (*old.tokens[:index], second, *old.tokens[index + 1 :])
    made = changed(companion, request, token=np.array(tokens, dtype=np.uint32))
    requests = list(made.requests)
    requests[request] = replace(requests[request], tokens=tokens)
    result = verdict(with_companion(evidence, ArmKind.ALONE, replace(made, requests=tuple(requests))))
    assert result.verdict is Verdict.CERTIFIED, result.findings
    assert result.details["alone"]["differ"]["numerical"] == 1


def rows_moved(arm, amount, seed=3):
    """The arm with a little noise on the rows of every request."""
    rng = np.random.default_rng(seed)
    for i, each in enumerate(arm.requests):
        noise = rng.normal(0, amount, each.trace.logits.shape).astype(np.float32)
        arm = changed(arm, i, logits=each.trace.logits + noise)
    return arm


@pytest.mark.medium
def test_under_rejection_a_change_of_rows_within_the_usual_is_numerical_and_above_it_real():
    evidence = simulated(TARGET, SETUPS["chain"])
    noisy = rows_moved(evidence.companions[ArmKind.ALONE], 1e-3)
    index = 20
    result = verdict(with_companion(evidence, ArmKind.ALONE, diverge(noisy, 2, index)))
    assert result.details["alone"]["differ"]["numerical"] == 1, result.findings
    assert result.verdict is Verdict.CERTIFIED
    logits = noisy.requests[2].trace.logits.copy()
    logits[index, int(np.argmax(logits[index]))] -= 1.0
    moved = diverge(changed(noisy, 2, logits=logits), 2, index)
    assert verdict(with_companion(evidence, ArmKind.ALONE, moved)).verdict is Verdict.FAULT


@pytest.mark.medium
def test_noise_that_is_no_rounding_excuses_nothing():
    evidence = simulated(TARGET, SETUPS["chain"])
    noisy = diverge(rows_moved(evidence.companions[ArmKind.ALONE], 1.0), 2, 20)
    result = verdict(with_companion(evidence, ArmKind.ALONE, noisy))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.details["alone"]["differ"]["untriaged"] == 1


@pytest.mark.medium
def test_text_alone_leaves_a_few_differences_open_and_calls_many_a_fault():
    setup = replace(SETUPS["chain"], level=RecordLevel.TOKENS)
    evidence = simulated(TARGET, setup)
    one = diverge(evidence.companions[ArmKind.REPEAT], 0, 5)
    assert verdict(with_companion(evidence, ArmKind.REPEAT, one)).verdict is Verdict.INCONCLUSIVE
    for i in range(1, 16):
        one = diverge(one, i, 5)
    result = verdict(with_companion(evidence, ArmKind.REPEAT, one))
    assert result.verdict is Verdict.FAULT
    assert "near-ties" in result.summary


@pytest.mark.medium
def test_too_few_requests_and_missing_arms_are_no_certificate():
    evidence = simulated(TARGET, SETUPS["chain"], 4)
    result = verdict(evidence)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.detectable == pytest.approx(1 - 0.1 ** (1 / 4))
    only = simulated(TARGET, SETUPS["chain"], repeat=SETUPS["chain"])
    assert "alone, reversed" in verdict(only).summary
    assert verdict(only).verdict is Verdict.INCONCLUSIVE
    assert verdict(only, arms=["repeat"]).verdict is Verdict.CERTIFIED
    assert verdict(Evidence(only.candidate, only.baseline, only.control)).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_a_companion_with_a_case_of_its_own_is_inconclusive():
    evidence = simulated(TARGET, SETUPS["chain"], 17)
    fewer = replace(evidence, candidate=replace(evidence.candidate, requests=evidence.candidate.requests[:16]))
    assert "lacks case" in verdict(fewer).summary


@pytest.mark.medium
@pytest.mark.parametrize("drafts", ["private", "shared"])
def test_other_drafts_are_left_out_only_where_the_proposer_shares_state(drafts):
    evidence = simulated(TARGET, SETUPS["chain"])
    other = evidence.companions[ArmKind.REVERSED]
    offered = offer(other.requests[1], 8)
    index = 8 if offered.drafted else 9
    nodes = other.requests[1].trace.node_token
    moved = changed(diverge(other, 1, index), 1, node_token=(nodes + 1) % 16)
    if drafts == "shared":
        candidate = replace(evidence.candidate, effective=Effective(proposer_state="shared"))
        evidence = replace(evidence, candidate=candidate)
    result = verdict(with_companion(evidence, ArmKind.REVERSED, moved))
    assert result.details["reversed"]["differ"]["drafts"] == 1
    assert result.details["reversed"]["left_out"] == (1 if drafts == "shared" else 0)
    assert result.verdict is (Verdict.CERTIFIED if drafts == "shared" else Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("protocol", fast_first([Protocol.CHAIN, Protocol.GUMBEL, Protocol.BLOCK]))
@pytest.mark.slow
def test_the_engine_keeps_its_seeds(protocol):
    """No false alarm over eight pairs of scripted models."""
    for models in range(1, 9):
        evidence = engine_evidence(plan(protocol), replace(SAMPLED, max_new_tokens=24), 6, models=10 * models)
        result = verdict(evidence, margin=0.9)
        assert result.verdict is Verdict.CERTIFIED, result.findings


@pytest.mark.medium
@pytest.mark.parametrize("name", fast_first(["seed_ignored", "numbers_of_another_request", "requests_share_numbers"]))
def test_faults_of_the_catalogue(name):
    result = verdict(arena_evidence(name, 8), margin=0.9)
    broken = name != "requests_share_numbers"
    assert result.verdict is (Verdict.FAULT if broken else Verdict.CERTIFIED), result.summary
    if name == "numbers_of_another_request":
        assert "reversed" in result.summary
        assert result.details["repeat"]["differ"]["real"] == 0
    if broken:
        assert result.findings[0].request.startswith("r")


@pytest.mark.medium
def test_greedy_arms_have_no_seed_to_ignore():
    evidence = engine_evidence(EngineSpec(Protocol.GREEDY, "ngram", 4, rows=4, fault="seed_ignored"), GREEDY, 6)
    assert verdict(evidence, margin=0.9).verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_companions_of_engine_arms_are_compared_by_case():
    evidence = engine_evidence(plan(), SAMPLED, 5)
    found = compare(evidence, ArmKind.REVERSED)
    assert (found.pairs, found.differences, found.unpaired) == (5, (), ())
