from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks.base.interface import Design, evaluate
from audit.checks.q_contract.check import CHECK
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel
from tests.audit.checks.engine_arms import arena_arm, engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first


def judge(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


def without_numbers(candidate):
    """What an engine leaves that does not reveal its draft's numbers."""
    for i, request in enumerate(candidate.requests):
        candidate = changed(candidate, i, node_uniform=np.full_like(request.trace.node_uniform, np.nan))
    return candidate


def seeded(setup, seed):
    return replace(setup, sampling=replace(setup.sampling, seed=seed))


CLEAN = {
    "chain": Setup(),
    "chain, truncated": Setup(sampling=replace(SAMPLED, top_p=0.9, temperature=0.7)),
    "gumbel, coupled draft": Setup(Protocol.GUMBEL, "coupled"),
    "gumbel, independent draft": Setup(Protocol.GUMBEL, "soft"),
    "chain, drafts that end early": Setup(stop="flat"),
}


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(CLEAN.values(), 2), ids=CLEAN.keys())
def test_a_clean_draft_is_certified(setup):
    result = judge(arm(world(4), setup, 32))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.bound == pytest.approx(1 - 0.01 ** (1 / result.n))
    assert result.detectable == pytest.approx(1 - 0.1 ** (1 / result.n))


ENGINE = {
    "chain": plan(),
    "block": plan(Protocol.BLOCK),
    "gumbel": plan(Protocol.GUMBEL),
    "synthetic": plan(Protocol.SYNTHETIC),
    "tree with replacement": plan(Protocol.TREE, "specinfer", 6, draft="draft"),
    "tree without replacement": plan(Protocol.TREE, "sequoia", 6, draft="draft"),
    "gumbel, coupled tree": plan(Protocol.GUMBEL, "specinfer", 6, draft="draft"),
}


@pytest.mark.medium
@pytest.mark.parametrize("made", fast_first(ENGINE.values(), 3), ids=ENGINE.keys())
def test_the_engine_draws_from_the_q_that_it_records(made):
    result = judge(engine_arm(made, requests=10))
    assert result.verdict is Verdict.CERTIFIED, result.summary


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "requests"), [("argmax_draft", 1), ("stale_q", 1), ("bf16_draft", 12)])
def test_a_draft_from_another_law_is_named_with_its_step(fault, requests):
    for seed in range(5):
        candidate = arm(world(seed), seeded(Setup(fault=fault), seed), requests)
        result = judge(candidate)
        assert result.verdict is Verdict.FAULT
        assert result.p_value is None
        first = result.findings[0]
        assert "its q and its number give" in first.message or "q 0" in first.message
        assert 0 <= first.step < candidate.requests[int(first.request.removeprefix("case-"))].trace.steps


@pytest.mark.medium
def test_a_bf16_draft_needs_the_numbers():
    """Its q is right to 0.1 %: ranks cannot show it, a draw that is repeated does."""
    result = judge(without_numbers(arm(world(0), Setup(fault="bf16_draft"), 24)))
    assert result.verdict is not Verdict.FAULT


@pytest.mark.medium
@pytest.mark.parametrize("fault", fast_first(["argmax_draft", "stale_q", "drop_low"]))
def test_ranks_show_it_where_the_numbers_are_not_recorded(fault):
    for seed in range(5):
        result = judge(without_numbers(arm(world(seed), seeded(Setup(fault=fault), seed), 10)))
        assert result.verdict is Verdict.FAULT
        assert result.effect > 0.05
        assert "by rank" in result.findings[0].message or "by p / q" in result.findings[0].message


@pytest.mark.medium
def test_ranks_certify_with_a_weaker_statement_and_enough_tokens():
    few, many = (judge(without_numbers(arm(world(4), Setup(), count))) for count in (4, 48))
    assert (few.verdict, many.verdict) == (Verdict.INCONCLUSIVE, Verdict.CERTIFIED)
    assert many.margin == 0.1
    assert many.bound < 0.1 < few.bound
    assert "ranks in q" in many.summary
    assert few.detectable > many.detectable


@pytest.mark.slow
def test_false_alarms_of_the_ranks_stay_at_their_level():
    """400 clean arms of four kinds at alpha 0.01 instead of 0.001: inside the 99.9 % binomial band."""
    kinds = (Setup(), Setup(Protocol.GUMBEL, "soft"), Setup(stop="after_low"), Setup(stop="flat"))
    false, runs = 0, 400
    for seed in range(runs):
        short = replace(kinds[seed % 4], sampling=replace(SAMPLED, seed=seed, max_new_tokens=32))
        clean = without_numbers(arm(world(seed % 9, sharpness=(1.0, 1.5, 3.0)[seed % 3]), short, 4))
        false += judge(clean, alpha=0.01).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)


CHANGES = {
    "the tested q is another": (lambda t: {"examined_q": put(t.examined_q, 0, 0.5)}, "was tested as 0.5"),
    "q is not normalised": (lambda t: {"q_rows": put(t.q_rows, 0, 2 * t.q_rows[0])}, "is no distribution"),
    "the token has q 0": (
        lambda t: {"q_rows": put(t.q_rows, 0, np.eye(16)[(int(t.node_token[0]) + 1) % 16])},
        "was not drawn from q",
    ),
    "another number": (lambda t: {"node_uniform": 1 - t.node_uniform}, "its q and its number give"),
    "called deterministic": (lambda t: {"q_kind": put(t.q_kind, 0, 1)}, "recorded as deterministic"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_record_is_a_fault(change, message):
    clean = arm(world(4), Setup(), 3)
    result = judge(changed(clean, 1, **change(clean.requests[1].trace)))
    assert result.verdict is Verdict.FAULT
    assert message in result.findings[0].message
    assert result.findings[0].request == "case-1"


@pytest.mark.medium
def test_rows_of_an_engine_that_normalises_in_single_precision_are_distributions():
    clean = without_numbers(arm(world(4), Setup(), 48))
    single = clean
    for i, request in enumerate(clean.requests):
        trace = request.trace
        scale = np.float64(1 + 3e-7)
        single = changed(single, i, q_rows=trace.q_rows * scale, examined_q=trace.examined_q * scale)
    assert judge(single).verdict is Verdict.CERTIFIED
    ours = arm(world(4), Setup(), 3)
    broken = changed(ours, 1, q_rows=ours.requests[1].trace.q_rows * (1 + 3e-7))
    assert "is no distribution" in judge(broken).findings[0].message


@pytest.mark.medium
def test_the_catalogue_s_argmax_draft():
    result = judge(arena_arm("argmax_draft_soft_q", requests=4))
    assert result.verdict is Verdict.FAULT
    assert judge(arena_arm("argmax_draft_soft_q", requests=16, broken=False)).verdict is Verdict.CERTIFIED


def test_missing_evidence_is_no_pass():
    clean = arm(world(4), Setup(), 2)
    assert judge(clean).verdict is Verdict.INCONCLUSIVE, "too few drafted tokens for the margin"
    assert judge(replace(clean, level=Level.L2)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(draft="one_hot"), 2)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(Protocol.GREEDY, sampling=GREEDY), 2)).verdict is Verdict.NOT_RUN
    scalars = judge(arm(world(4), Setup(level=RecordLevel.SCALARS), 2))
    assert (scalars.verdict, "rows need topk or full" in scalars.summary) == (Verdict.INCONCLUSIVE, True)


def test_the_plan_is_the_rule_of_zero_violations():
    design = Design(requests=10, prompts=10, tokens=640, gamma=4, greedy=False, level=Level.L4)
    need = CHECK.plan(CHECK.defaults, design)
    assert (need.units, need.unit) == (459, "drafted tokens")
    assert CHECK.plan(CHECK.defaults, replace(design, greedy=True)) is None
