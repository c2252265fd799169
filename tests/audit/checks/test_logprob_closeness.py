from dataclasses import replace

import numpy as np
import pytest

from audit.checks import logprob_closeness
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel
from tests.audit.checks.reruns import arena_evidence
from tests.audit.checks.simulator import GREEDY, Setup, arm, changed, world
from tests.support.tiers import fast_first

TARGET = world(6)
SETUPS = {"greedy": Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), "gumbel": Setup(Protocol.GUMBEL, "coupled")}


def verdict(evidence, **params):
    return evaluate(logprob_closeness.CHECK, evidence, params)


def evidence_of(setup, requests=12, target=TARGET, **others):
    plain = replace(setup, draft="none")
    return Evidence(
        arm(target, setup, requests),
        arm(target, plain, requests, kind=ArmKind.BASELINE),
        arm(target, replace(plain, noise=1e-4, noise_seed=1), requests, kind=ArmKind.CONTROL),
        others,
    )


def moved(arm, move):
    """The arm with log-probabilities changed by `move(logprob, generator)`."""
    rng = np.random.default_rng(5)
    for i, each in enumerate(arm.requests):
        arm = changed(arm, i, logprob=move(each.trace.logprob, rng))
    return arm


def with_candidate(evidence, move):
    return replace(evidence, candidate=moved(evidence.candidate, move))


@pytest.mark.medium
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_equal_numbers_are_certified(setup):
    result = verdict(evidence_of(setup))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.bound == 0.0
    assert 0 < result.details["floor"]["mean"] < 1e-3


@pytest.mark.slow
def test_noise_within_the_margin_raises_no_alarm():
    """Forty arms with noise of 0.01 nats, half of the margin."""
    verdicts = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        noisy = with_candidate(evidence_of(SETUPS["greedy"], 12), lambda row, _, rng=rng: row + rng.normal(0, 0.01, 64))
        verdicts.append(verdict(noisy).verdict)
    assert Verdict.FAULT not in verdicts
    assert verdicts.count(Verdict.CERTIFIED) == 40


MOVES = {
    "zeros": lambda row, _: np.zeros_like(row),
    "shift": lambda row, _: row - 0.015,
    "noise": lambda row, rng: row + rng.normal(0, 0.05, len(row)),
    "temperature": lambda row, _: row * 0.7,
}


@pytest.mark.medium
@pytest.mark.parametrize("move", fast_first(MOVES.values(), 2), ids=MOVES.keys())
def test_other_numbers_are_a_fault(move):
    result = verdict(with_candidate(evidence_of(SETUPS["gumbel"]), move))
    assert result.verdict is Verdict.FAULT, result.summary


@pytest.mark.medium
def test_a_shift_inside_the_margin_of_the_mean_is_seen_as_a_shift():
    result = verdict(with_candidate(evidence_of(SETUPS["gumbel"]), MOVES["shift"]))
    assert "shifted by -0.015" in result.findings[0].message
    assert result.p_value < 0.001


@pytest.mark.medium
def test_a_single_wrong_number_is_named():
    evidence = evidence_of(SETUPS["gumbel"])
    wrong = evidence.candidate.requests[4].trace.logprob.copy()
    wrong[17] -= 2.0
    result = verdict(replace(evidence, candidate=changed(evidence.candidate, 4, logprob=wrong)))
    assert result.verdict is Verdict.FAULT
    assert [(each.request, each.message.split(":")[0]) for each in result.findings] == [("case-4", "token 17")]
    wrong[17] = np.nan
    result = verdict(replace(evidence, candidate=changed(evidence.candidate, 4, logprob=wrong)))
    assert result.verdict is Verdict.FAULT


@pytest.mark.medium
def test_the_floor_widens_what_is_allowed():
    noise = lambda row, rng: row + rng.normal(0, 0.05, len(row))  # noqa: E731
    evidence = with_candidate(evidence_of(SETUPS["greedy"]), noise)
    result = verdict(replace(evidence, control=moved(evidence.control, noise)))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.margin == pytest.approx(2 * result.details["floor"]["mean"])


@pytest.mark.medium
def test_too_little_is_inconclusive():
    few = evidence_of(SETUPS["gumbel"], 1)
    assert verdict(few).verdict is Verdict.INCONCLUSIVE
    noisy = with_candidate(evidence_of(SETUPS["gumbel"], 3), lambda row, rng: row + rng.normal(0, 0.025, len(row)))
    result = verdict(noisy)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.detectable > 0
    bare = evidence_of(replace(SETUPS["gumbel"], level=RecordLevel.TOKENS))
    assert verdict(bare).verdict is Verdict.INCONCLUSIVE


def test_what_does_not_apply_is_not_run():
    chain = evidence_of(Setup(), 2)
    assert verdict(chain).verdict is Verdict.NOT_RUN
    assert verdict(Evidence(chain.candidate)).verdict is Verdict.NOT_RUN
    low = replace(evidence_of(SETUPS["gumbel"], 2).candidate, level=Level.L0)
    assert verdict(Evidence(low, low)).verdict is Verdict.NOT_RUN


def test_an_anchor_serves_every_protocol():
    chain = arm(TARGET, Setup(), 12)
    anchored = Evidence(chain, companions={ArmKind.ANCHOR: replace(chain, kind=ArmKind.ANCHOR)})
    assert verdict(anchored).verdict is Verdict.CERTIFIED
    assert verdict(with_candidate(anchored, MOVES["temperature"])).verdict is Verdict.FAULT


@pytest.mark.medium
@pytest.mark.parametrize("name", fast_first(["logprobs_zero", "logprob_rows_shifted"]))
def test_faults_of_the_catalogue(name):
    """In their arenas tokens are sampled: the anchor is the clean arm, whose tokens are the same."""
    broken, clean = (arena_evidence(name, 6, broken=each, kinds=()) for each in (True, False))
    anchored = Evidence(broken.candidate, companions={ArmKind.ANCHOR: clean.candidate})
    assert verdict(anchored).verdict is Verdict.FAULT
    assert verdict(replace(anchored, candidate=clean.candidate)).verdict is Verdict.CERTIFIED


def of_prompts(arm, shift=0.0, first=0):
    """The arm with log-probabilities of prompts on record, from request `first` on."""
    requests = []
    for i, each in enumerate(arm.requests):
        said = [None, *(-1.0 - 0.1 * ((7 * i + k) % 5) + shift for k in range(20))]
        facts = {} if i < first else {"prompt_logprobs": said}
        header = replace(each.trace.header, facts={**each.trace.header.facts, **facts})
        requests.append(replace(each, trace=replace(each.trace, header=header)))
    return replace(arm, requests=tuple(requests))


def with_prompts(evidence, **named):
    return replace(evidence, candidate=of_prompts(evidence.candidate, **named), baseline=of_prompts(evidence.baseline))


@pytest.mark.medium
def test_log_probabilities_of_prompts_are_compared_where_they_were_requested():
    plain = evidence_of(SETUPS["greedy"])
    assert "baseline over prompts" not in verdict(plain).summary
    good = verdict(with_prompts(plain, first=2))
    assert good.verdict is Verdict.CERTIFIED, good.summary
    assert good.details["baseline over prompts"]["tokens"] == 20 * 10
    bad = verdict(with_prompts(plain, shift=-0.5))
    assert bad.verdict is Verdict.FAULT
    assert "against the baseline over prompts: mean absolute difference 0.5" in bad.summary


@pytest.mark.medium
def test_a_finding_names_the_prompt_s_token():
    plain = evidence_of(SETUPS["greedy"])
    far = with_prompts(plain, shift=-3.0)
    found = verdict(far)
    assert found.findings[0].message.startswith("prompt token 1: log-probability -4, ")


def read_along(arm, kind):
    """An independent pass along an arm's own tokens, with rounding of 1e-6."""
    made = moved(arm, lambda row, rng: row + rng.normal(0, 1e-6, len(row)))
    return replace(made, kind=kind)


def with_noise(baseline_too=0.0, one=0.0):
    """A sampled arm whose plain decoding is so far from the reference, with one number moved."""
    chain = arm(TARGET, Setup(), 12)
    plain = arm(TARGET, Setup(draft="none"), 12, kind=ArmKind.BASELINE)
    others = {ArmKind.ANCHOR: read_along(chain, ArmKind.ANCHOR), ArmKind.NOISE: read_along(plain, ArmKind.NOISE)}
    wrong = chain.requests[4].trace.logprob.copy()
    wrong[17] -= one
    plain = moved(plain, lambda row, rng: row + rng.normal(0, baseline_too, len(row)))
    return Evidence(changed(chain, 4, logprob=wrong), plain, None, others)


@pytest.mark.medium
def test_where_the_noise_is_measured_a_single_difference_far_beyond_it_is_a_fault():
    assert verdict(with_noise()).verdict is Verdict.CERTIFIED
    wrong = verdict(with_noise(one=0.05))
    assert wrong.verdict is Verdict.FAULT
    assert wrong.findings[0].message.endswith("more than 0.01 apart")
    # without a measurement it is inside every allowance
    unmeasured = with_noise(one=0.05)
    assert verdict(replace(unmeasured, baseline=None)).verdict is Verdict.CERTIFIED
    assert verdict(with_noise(one=0.05), min_noise=10_000).verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_plain_decoding_that_is_further_away_than_rounding_certifies_nothing():
    other = verdict(with_noise(baseline_too=0.05))
    assert other.verdict is Verdict.INCONCLUSIVE
    assert "the engine runs another model, or computes in a lower precision" in other.summary
    assert verdict(with_noise(baseline_too=0.05), most_noise=1.0).verdict is Verdict.CERTIFIED
    assert verdict(with_noise(baseline_too=0.05, one=2.0)).verdict is Verdict.FAULT


@pytest.mark.medium
def test_in_16_bits_rounding_counts_as_the_floor_does():
    """Both arms are 0.05 nats away on average, three times the fixed margin."""

    def rounded(evidence):
        effective = evidence.candidate.effective.with_fact("target", {"dtype": "bfloat16"})
        noisy = moved(evidence.candidate, lambda row, rng: row + rng.normal(0, 0.06, len(row)))
        return replace(evidence, candidate=replace(noisy, effective=effective))

    assert verdict(rounded(with_noise(one=0.0, baseline_too=0.06))).verdict is Verdict.CERTIFIED
    # without a measurement of the noise it is beyond every allowance
    assert verdict(rounded(with_noise(one=0.0, baseline_too=0.06)), min_noise=10_000).verdict is Verdict.FAULT
    other = verdict(rounded(with_noise(one=0.0, baseline_too=1.0)))
    assert other.verdict is Verdict.FAULT
    assert verdict(rounded(with_noise(one=0.0, baseline_too=0.06)), half_noise=0.01).verdict is Verdict.FAULT
