from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks.base.interface import Design, evaluate
from audit.checks.rng_streams.check import CHECK, coincidences, independence, significant_bits
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel, Role
from tests.audit.checks.engine_arms import arena_arm, engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first


def judge(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


CLEAN = {
    "chain": plan(),
    "chain, deterministic draft": plan(proposer="ngram"),
    "block": plan(Protocol.BLOCK),
    "tree without replacement": plan(Protocol.TREE, "sequoia", 6, draft="draft"),
    "tree with replacement": plan(Protocol.TREE, "specinfer", 6, draft="draft"),
    "tree, deterministic": plan(Protocol.TREE, "suffix", 6),
}


@pytest.mark.medium
@pytest.mark.parametrize("made", fast_first(CLEAN.values(), 2), ids=CLEAN.keys())
def test_the_engine_s_numbers_are_certified(made):
    result = judge(engine_arm(made, requests=10))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.bound == pytest.approx(1 - 0.01 ** (1 / result.n))
    assert set(result.details["significant_bits"].values()) == {53}


@pytest.mark.medium
def test_an_independent_draft_under_shared_noise_has_draft_numbers_only():
    result = judge(arm(world(4), Setup(Protocol.GUMBEL, "soft"), 12))
    assert result.verdict is Verdict.CERTIFIED
    assert set(result.details["numbers"]) == {"draft"}


@pytest.mark.slow
def test_false_alarms_stay_at_their_level():
    """200 clean arms of four kinds at alpha 0.01 instead of 0.001: inside the 99.9 % binomial band."""
    kinds = (Setup(), Setup(Protocol.GUMBEL, "soft"), Setup(draft="one_hot"), Setup(stop="flat"))
    false, runs = 0, 200
    for seed in range(runs):
        short = replace(kinds[seed % 4], sampling=replace(SAMPLED, seed=seed, max_new_tokens=32))
        clean = arm(world(seed % 9, sharpness=(1.0, 1.5, 3.0)[seed % 3]), short, 5)
        false += judge(clean, alpha=0.01).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)


FAULTS = {
    "one_number_accept_and_residual": "is also the accept number",
    "residual_reuses_draft_number": "is also the draft number",
    "number_reused_across_positions": "is also the accept number",
    "float16_uniforms": "have 11 significant bits, 32 are required",
    "uniforms_of_24_bits": "have 24 significant bits, 32 are required",
    "requests_share_numbers": "of r0",
    "seed_ignored": "the key gives",
    "unseeded_draft": "the key gives",
    "numbers_of_another_request": "is also the draft number",
}


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "message"), fast_first(FAULTS.items(), 2), ids=FAULTS.keys())
def test_faults_of_the_catalogue_are_named(fault, message):
    for seed in range(3):
        result = judge(arena_arm(fault, requests=2, seed=seed))
        assert result.verdict is Verdict.FAULT
        assert seed or message in result.findings[0].message


def test_a_number_of_zero_is_impossible():
    result = judge(arena_arm("zero_accepts_everything", requests=2), max_findings=999)
    assert result.verdict is Verdict.FAULT
    assert any("outside (0, 1)" in each.message for each in result.findings)


@pytest.mark.medium
def test_reuse_shows_in_the_simulated_decoder_too():
    for seed in range(5):
        broken = arm(world(seed), Setup(fault="reuse", sampling=replace(SAMPLED, seed=seed)), 2)
        result = judge(broken)
        assert result.verdict is Verdict.FAULT
        assert "is also the accept number" in result.findings[0].message


def recovered_numbers(candidate, number):
    """The arm with the numbers of recovered tokens replaced by `number` of the rejected acceptance numbers."""
    for i, request in enumerate(candidate.requests):
        trace = request.trace
        rejected = np.flatnonzero(trace.examined_accepted == 0)
        uniform = put(trace.uniform, np.flatnonzero(trace.role == Role.RECOVERED), number(trace, rejected))
        candidate = changed(candidate, i, uniform=uniform)
    return candidate


DEPENDENT = {
    "mirrored": lambda t, x: 1.0 - t.examined_uniform[x],
    "the rest of the acceptance number": lambda t, x: (
        (t.examined_uniform[x] - t.examined_p[x] / t.examined_q[x]) / (1 - t.examined_p[x] / t.examined_q[x])
    ),
    "shifted": lambda t, x: np.mod(t.examined_uniform[x] + 0.37, 1.0),
}


@pytest.mark.medium
@pytest.mark.parametrize("number", DEPENDENT.values(), ids=DEPENDENT.keys())
def test_numbers_that_depend_on_each_other_without_being_equal(number):
    """The keys differ as well here; the tests of independence must say it by themselves."""
    result = judge(recovered_numbers(arm(world(4), Setup(), 12), number))
    failed = {row["name"] for row in result.details["tests"] if row["p_adjusted"] < 0.001}
    assert any(name.startswith("accept, residual") for name in failed)


def test_requests_that_share_a_stream_decide_nothing():
    clean = arm(world(4), Setup(), 3)
    header = clean.requests[0].trace.header
    result = judge(changed(clean, 1, header=replace(clean.requests[1].trace.header, stream=header.stream)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "share seed and stream" in result.summary


def test_a_changed_number_is_a_fault_with_its_step():
    clean = arm(world(4), Setup(), 3)
    trace = clean.requests[1].trace
    result = judge(changed(clean, 1, examined_uniform=put(trace.examined_uniform, 9, 0.123456789)))
    (finding,) = result.findings
    assert finding.request == "case-1"
    assert finding.step == int(np.searchsorted(np.cumsum(trace.n_examined), 9, side="right"))


@pytest.mark.medium
def test_missing_numbers_certify_nothing():
    clean = arm(world(4), Setup(), 10)
    for i, request in enumerate(clean.requests):
        clean = changed(clean, i, uniform=np.full_like(request.trace.uniform, np.nan))
    result = judge(clean)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not recorded" in result.summary


@pytest.mark.medium
def test_missing_evidence_is_no_pass():
    clean = arm(world(4), Setup(), 1)
    assert judge(clean).verdict is Verdict.INCONCLUSIVE, "too few numbers for the margin"
    assert judge(replace(clean, level=Level.L3)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(level=RecordLevel.TOKENS), 1)).verdict is Verdict.INCONCLUSIVE
    assert judge(arm(world(4), Setup(Protocol.GUMBEL, "coupled"), 1)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), 1)).verdict is Verdict.NOT_RUN
    assert judge(engine_arm(plan(Protocol.SYNTHETIC), requests=2)).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_scalars_are_enough():
    result = judge(arm(world(4), Setup(level=RecordLevel.SCALARS), 10))
    assert result.verdict is Verdict.CERTIFIED


def test_precision_is_that_of_the_type():
    rng = np.random.default_rng(0)
    u = rng.random(100)
    assert significant_bits(u) == 53
    assert significant_bits(u.astype(np.float32).astype(np.float64)) == 24
    assert significant_bits(u.astype(np.float16).astype(np.float64)) == 11
    assert significant_bits(rng.integers(0, 2**24, 100) / 2.0**24) <= 24


@pytest.mark.medium
def test_coincidences_are_judged_by_the_birthday_bound_of_their_precision():
    rng = np.random.default_rng(1)
    half = rng.integers(0, 2**24, 20_000) / 2.0**24
    assert coincidences(half).statistic > 0
    assert coincidences(half).p > 0.001
    doubles = rng.random(1_000_000)
    assert (coincidences(doubles).statistic, coincidences(doubles).p) == (0.0, 1.0)
    assert coincidences(np.append(doubles, doubles[7])).p < 1e-4


def test_independence_holds_for_a_second_number_after_any_first():
    rng = np.random.default_rng(2)
    first = rng.beta(5, 1, 4000)
    assert min(test.p for test in independence("pair", first, rng.random(4000), rng)) > 0.001
    assert min(test.p for test in independence("pair", first, np.mod(3 * first, 1.0), rng)) < 1e-6


def test_the_plan_counts_numbers():
    design = Design(requests=10, prompts=10, tokens=640, gamma=4, greedy=False, level=Level.L4)
    assert (CHECK.plan(CHECK.defaults, design).units, CHECK.plan(CHECK.defaults, design).unit) == (
        459,
        "random numbers",
    )
    assert CHECK.plan(CHECK.defaults, replace(design, greedy=True)) is None
