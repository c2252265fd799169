from dataclasses import replace

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.equality import coupled as coupled_equality
from audit.checks.equality import greedy as greedy_equality
from audit.evidence.divergence import coupled as coupled_leads
from audit.evidence.divergence import greedy as greedy_leads
from audit.evidence.pairing import measure_noise
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from audit.stats.binomial import covered_quantile
from engine.core.types import FinishReason, Protocol, RecordLevel
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world

GREEDY_PLAIN = Setup(Protocol.GREEDY, "none", sampling=GREEDY)
GREEDY_DRAFT = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY)
COUPLED_PLAIN = Setup(Protocol.GUMBEL, "none")
COUPLED_DRAFT = Setup(Protocol.GUMBEL, "coupled")
CASES = {
    "greedy": (greedy_equality.CHECK, GREEDY_PLAIN, GREEDY_DRAFT),
    "coupled": (coupled_equality.CHECK, COUPLED_PLAIN, COUPLED_DRAFT),
}

NONE = {"numerical": 0, "real": 0, "untriaged": 0, "baseline": 0}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request):
    check, plain, draft = request.param
    target = world(6)
    arms = Evidence(
        arm(target, draft, 8),
        arm(target, plain, 8, kind=ArmKind.BASELINE),
        arm(target, replace(plain, noise=1e-4, noise_seed=1), 8, kind=ArmKind.CONTROL),
    )
    return check, target, draft, arms


def module_of(check):
    return greedy_leads if check is greedy_equality.CHECK else coupled_leads


def lead_at(check, request, index):
    return float(module_of(check).margins(request)[index])


def second_choice(check, request, index):
    if check is coupled_equality.CHECK:
        return int(np.argsort(-coupled_leads.perturbed(request, index))[1])
    return int(np.argsort(-request.trace.logits[index], kind="stable")[1])


def diverge(arms, request, index, token):
    """The candidate takes another token there and whatever after."""
    old = arms.candidate.requests[request]
    tokens = (*old.tokens[:index], token, *old.tokens[index + 1 :])
    trace = replace(old.trace, token=np.array(tokens, dtype=np.uint32))
    requests = list(arms.candidate.requests)
    requests[request] = replace(old, tokens=tokens, trace=trace)
    return replace(arms, candidate=replace(arms.candidate, requests=tuple(requests)))


def near_and_clear(check, arms):
    """The (request, index) of the smallest and of the largest lead of the baseline."""
    leads = np.stack([module_of(check).margins(each) for each in arms.baseline.requests])
    return np.unravel_index(np.argmin(leads), leads.shape), np.unravel_index(np.argmax(leads), leads.shape)


def widen(arms, check, amount):
    """A control in which one lead differs from the baseline's by `amount`."""
    if check is coupled_equality.CHECK:
        old = arms.baseline.requests[0]
        index = int(np.flatnonzero(old.trace.token == old.trace.logits.argmax(axis=1))[0])
        logits = old.trace.logits.copy()
        logits[index, int(old.trace.token[index])] += 20 * amount
        return replace(arms, control=changed(arms.baseline, 0, logits=logits))
    margin = arms.baseline.requests[0].trace.margin
    return replace(arms, control=changed(arms.baseline, 0, margin=put(margin, 0, margin[0] + amount)))


@pytest.mark.medium
def test_equal_outputs_are_certified(case):
    check, _, _, arms = case
    result = evaluate(check, arms, {})
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.n == 512
    assert result.details["divergences"] == NONE


@pytest.mark.medium
def test_equal_outputs_are_certified_without_a_control(case):
    check, _, _, arms = case
    assert evaluate(check, replace(arms, control=None), {}).verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_unverified_drafts_are_real_divergences(case):
    check, target, draft, arms = case
    broken = replace(arms, candidate=arm(target, replace(draft, fault="unverified"), 8))
    result = evaluate(check, broken, {})
    assert result.verdict is Verdict.FAULT
    assert result.details["divergences"]["real"] >= 2
    assert "real: token" in result.findings[0].message


@pytest.mark.medium
def test_a_divergence_is_triaged_by_the_lead_at_its_first_token(case):
    check, _, _, arms = case
    near, clear = near_and_clear(check, arms)
    lead = lead_at(check, arms.baseline.requests[near[0]], near[1])
    arms = widen(arms, check, lead + 0.01)
    request, index = (int(each) for each in near)
    token = second_choice(check, arms.baseline.requests[request], index)
    result = evaluate(check, diverge(arms, request, index, token), {})
    assert result.details["divergences"] == {**NONE, "numerical": 1}
    assert result.verdict is Verdict.CERTIFIED
    strict = evaluate(check, diverge(arms, request, index, token), {"max_numerical_per_1000": 1.0})
    assert strict.verdict is Verdict.INCONCLUSIVE
    request, index = (int(each) for each in clear)
    token = second_choice(check, arms.baseline.requests[request], index)
    assert evaluate(check, diverge(arms, request, index, token), {}).verdict is Verdict.FAULT


@pytest.mark.medium
def test_a_far_token_at_a_near_tie_is_real(case):
    check, _, _, arms = case
    near, _ = near_and_clear(check, arms)
    request, index = (int(each) for each in near)
    arms = widen(arms, check, lead_at(check, arms.baseline.requests[request], index) + 0.01)
    baseline = arms.baseline.requests[request]
    worst = int(np.argmin(baseline.trace.logits[index]))
    assert evaluate(check, diverge(arms, request, index, worst), {}).verdict is Verdict.FAULT


def worse_baseline(check, arms, request, index):
    """The baseline emits the second choice of its own row there; the candidate keeps the best."""
    arm_ = arms.baseline
    token = second_choice(check, arm_.requests[request], index)
    swapped = diverge(Evidence(arm_), request, index, token).candidate
    return replace(arms, baseline=swapped)


@pytest.mark.medium
@pytest.mark.parametrize("bound", [-1.0, 0.0])
def test_a_baseline_that_does_not_decode_its_own_rows_is_blamed_by_name(case, bound):
    check, _, _, arms = case
    request, index = (int(each) for each in near_and_clear(check, arms)[1])
    lead = lead_at(check, arms.baseline.requests[request], index)
    result = evaluate(check, worse_baseline(check, arms, request, index), {"noise_bound": bound})
    assert result.verdict is Verdict.FAULT
    assert result.summary.startswith("fault of the baseline: 1 of its tokens are not the best of their own rows")
    assert result.details["divergences"] == {**NONE, "baseline": 1}
    own, compared_ = result.findings
    assert own.message.startswith(f"fault of the baseline: token {index} is ")
    assert f"{lead:.4g} " in own.message
    assert "the baseline's own row prefers the candidate's token" in compared_.message


@pytest.mark.medium
def test_a_baseline_at_fault_is_found_without_any_divergence(case):
    check, _, _, arms = case
    request, index = (int(each) for each in near_and_clear(check, arms)[1])
    broken = worse_baseline(check, arms, request, index)
    broken = diverge(broken, request, index, broken.baseline.requests[request].tokens[index])
    result = evaluate(check, replace(broken, control=None), {})
    assert result.details["divergences"] == NONE
    assert (result.verdict, result.details["baseline_tokens_behind"]) == (Verdict.FAULT, 1)


def test_top_k_records_show_a_baseline_that_is_not_greedy():
    baseline = arm(world(6, vocabulary=32), replace(GREEDY_PLAIN, level=RecordLevel.TOPK), 1)
    scores = baseline.requests[0].trace
    second = int(scores.top_id[3][1])
    broken = diverge(Evidence(baseline), 0, 3, second).candidate
    result = evaluate(greedy_equality.CHECK, Evidence(baseline, broken), {"noise_bound": 0.0})
    assert result.verdict is Verdict.FAULT
    assert result.details["leads"] == [pytest.approx(scores.top_score[3][1] - scores.top_score[3][0])]


def test_a_best_token_within_the_rounding_of_float32_is_no_fault():
    row = np.array([20.0, 20.0 + 2e-6])
    assert greedy_leads.beyond_rounding(row[1:] - row[:1], row[1:]).tolist() == [0.0]
    assert greedy_leads.beyond_rounding(np.array([2e-4]), row[1:]).tolist() == [2e-4]


@pytest.mark.medium
@pytest.mark.parametrize("control", ["none", "short"])
def test_without_measured_noise_a_divergence_is_inconclusive(case, control):
    check, _, _, arms = case
    broken = diverge(arms, 2, 10, (arms.candidate.requests[2].tokens[10] + 1) % 16)
    short = replace(arms.control, requests=arms.control.requests[:4])
    result = evaluate(check, replace(broken, control=None if control == "none" else short), {})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.details["divergences"]["untriaged"] == 1


@pytest.mark.medium
def test_a_bound_measured_elsewhere_triages_without_a_control(case):
    check, _, _, arms = case
    clear = [int(each) for each in near_and_clear(check, arms)[1]]
    baseline = arms.baseline.requests[clear[0]]
    lead = lead_at(check, baseline, clear[1])
    broken = replace(diverge(arms, *clear, second_choice(check, baseline, clear[1])), control=None)
    below, above = (evaluate(check, broken, {"noise_bound": lead + by}) for by in (-0.01, 0.01))
    assert below.verdict is Verdict.FAULT
    assert below.details["divergences"] == {**NONE, "real": 1}
    assert "given by the suite" in below.summary
    assert below.details["noise_given"]
    assert above.details["divergences"] == {**NONE, "numerical": 1}
    assert not evaluate(check, arms, {}).details["noise_given"]


@pytest.mark.medium
def test_a_shorter_output_is_real_without_any_control(case):
    check, _, _, arms = case
    old = arms.candidate.requests[0]
    cut = replace(old, tokens=old.tokens[:-3])
    arms = replace(arms, candidate=replace(arms.candidate, requests=(cut, *arms.candidate.requests[1:])), control=None)
    result = evaluate(check, arms, {})
    assert result.verdict is Verdict.FAULT
    assert "ends after 61 tokens" in result.findings[0].message


@pytest.mark.medium
def test_another_finish_reason_is_real(case):
    check, _, _, arms = case
    other = replace(arms.candidate.requests[0], finish_reason=FinishReason.STOP)
    arms = replace(arms, candidate=replace(arms.candidate, requests=(other, *arms.candidate.requests[1:])))
    assert evaluate(check, arms, {}).verdict is Verdict.FAULT


@pytest.mark.medium
def test_few_tokens_and_missing_pairs_are_no_certificate(case):
    check, _, _, arms = case
    assert evaluate(check, arms, {"min_tokens": 1000}).verdict is Verdict.INCONCLUSIVE
    missing = replace(arms, candidate=replace(arms.candidate, requests=arms.candidate.requests[1:]))
    result = evaluate(check, missing, {})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.details["unpaired"] == ["case-0#0"]


@pytest.mark.medium
def test_other_prompts_are_not_compared(case):
    check, _, _, arms = case
    header = replace(arms.candidate.requests[0].trace.header, prompt=(1, 3))
    other = replace(arms, candidate=changed(arms.candidate, 0, header=header))
    assert evaluate(check, other, {}).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
def test_the_noise_bound_is_the_largest_change_and_says_what_it_covers(case):
    check, _, _, arms = case
    noise = measure_noise(arms.baseline, arms.controls, module_of(check).margins)
    assert 300 <= noise.positions <= 512
    assert 1e-5 < noise.bound < 2e-3
    assert noise.quantile == pytest.approx(covered_quantile(noise.positions))


@pytest.mark.medium
def test_a_flip_between_baseline_and_control_counts_with_both_leads(case):
    check, _, _, arms = case
    old = arms.control.requests[0]
    tokens = (*old.tokens[:5], (old.tokens[5] + 1) % 16, *old.tokens[6:])
    control = replace(arms.control, requests=(replace(old, tokens=tokens), *arms.control.requests[1:]))
    noise = measure_noise(arms.baseline, (control,), module_of(check).margins)
    leads = [lead_at(check, each.requests[0], 5) for each in (arms.baseline, arms.control)]
    assert noise.flips == 1
    assert noise.bound == pytest.approx(sum(leads))


@pytest.mark.medium
def test_benign_noise_is_numerical():
    """Three runs of one noisy engine, eight times: divergences happen, and none is called real."""
    target, counts = world(8), []
    for seed in range(8):
        runs = [replace(GREEDY_PLAIN, noise=0.02, noise_seed=3 * seed + i) for i in range(3)]
        baseline, control, candidate = (noisy_greedy(target, setup) for setup in runs)
        result = evaluate(greedy_equality.CHECK, Evidence(candidate, baseline, control), {})
        counts.append(result.details["divergences"])
    assert sum(each["real"] for each in counts) == 0
    assert sum(each["numerical"] for each in counts) >= 8


def noisy_greedy(target, setup):
    """Plain greedy decoding of a target whose logits carry noise."""
    made = arm(target, setup, 10)
    rows = [each.trace.logits.argmax(axis=1) for each in made.requests]
    tokens = [tuple(int(token) for token in row) for row in rows]
    # the order-1 contexts stay those of the clean run: only the choice is noisy, and only its first effect counts
    requests = tuple(
        replace(each, tokens=own, trace=replace(each.trace, token=np.array(own, dtype=np.uint32)))
        for each, own in zip(made.requests, tokens, strict=True)
    )
    return replace(made, requests=requests)


@pytest.mark.parametrize(
    ("check", "setup"),
    [
        (greedy_equality.CHECK, Setup()),
        (coupled_equality.CHECK, Setup()),
        (coupled_equality.CHECK, Setup(Protocol.GUMBEL, "none", sampling=GREEDY)),
    ],
)
def test_other_arms_are_not_judged(check, setup):
    candidate = arm(world(6), setup, 1)
    assert evaluate(check, Evidence(candidate, candidate, candidate), {}).verdict is Verdict.NOT_RUN


@pytest.mark.parametrize("case_name", CASES)
def test_without_a_baseline_nothing_is_compared(case_name):
    check, _, draft = CASES[case_name]
    assert evaluate(check, Evidence(arm(world(6), draft, 1)), {}).verdict is Verdict.NOT_RUN


def test_coupled_arms_must_share_their_numbers():
    target = world(6)
    other = replace(COUPLED_PLAIN, sampling=replace(SAMPLED, seed=8))
    evidence = Evidence(arm(target, COUPLED_DRAFT, 2), arm(target, other, 2))
    result = evaluate(coupled_equality.CHECK, evidence, {})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "random numbers" in result.summary


@pytest.mark.medium
def test_coupled_divergences_below_full_are_inconclusive():
    target = world(6)
    arms = [arm(target, replace(setup, level=RecordLevel.SCALARS), 8) for setup in (COUPLED_DRAFT, COUPLED_PLAIN)]
    evidence = Evidence(arms[0], arms[1], arms[1])
    assert evaluate(coupled_equality.CHECK, evidence, {}).verdict is Verdict.CERTIFIED
    assert evaluate(coupled_equality.CHECK, diverge(evidence, 1, 4, 0), {}).verdict is Verdict.INCONCLUSIVE


def test_top_k_records_give_the_least_lead_of_a_token_outside_them():
    target = world(6, vocabulary=32)
    setup = replace(GREEDY_PLAIN, level=RecordLevel.TOPK)
    baseline, full = arm(target, setup, 1), arm(target, GREEDY_PLAIN, 1)
    worst = int(np.argmin(full.requests[0].trace.logits[3]))
    evidence = diverge(Evidence(baseline, baseline), 0, 3, worst)
    result = evaluate(greedy_equality.CHECK, evidence, {})
    scores = baseline.requests[0].trace.top_score[3]
    assert result.details["leads"] == [pytest.approx(scores[0] - scores[-1])]


def test_thresholds_close_to_a_token_are_seen():
    p = np.array([0.4, 0.3, 0.2, 0.1])
    top_k, top_p, min_p = (replace(SAMPLED, **each) for each in ({"top_k": 2}, {"top_p": 0.75}, {"min_p": 0.5}))
    assert coupled_leads.threshold_distance(p, 1, SAMPLED) == float("inf")
    assert coupled_leads.threshold_distance(p, 1, top_k) == pytest.approx(np.log(0.3 / 0.2))
    assert coupled_leads.threshold_distance(p, 3, top_k) == pytest.approx(np.log(0.3 / 0.1))
    assert coupled_leads.threshold_distance(p, 2, top_p) == pytest.approx(0.05)
    assert coupled_leads.threshold_distance(p, 2, min_p) == pytest.approx(0.0)
