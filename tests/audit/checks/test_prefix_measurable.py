from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks.base.interface import EVERYTHING, Design, evaluate
from audit.checks.prefix_measurable.check import CHECK
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.steady import SteadyDrafts
from engine.core.types import Protocol, RecordLevel, Role
from engine.record.effective import Effective
from tests.audit.checks.engine_arms import arena_arm, engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first


def judge(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


def seeded(setup, seed):
    return replace(setup, sampling=replace(setup.sampling, seed=seed))


HARMLESS = {
    "whole drafts": Setup(),
    "drafts that end before a flat q": Setup(stop="flat"),
    "drafts that end after an unlikely token": Setup(stop="after_low"),
    "coupled draft": Setup(Protocol.GUMBEL, "coupled"),
    "independent draft under shared noise": Setup(Protocol.GUMBEL, "soft"),
}


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(HARMLESS.values(), 2), ids=HARMLESS.keys())
def test_what_the_prefix_decides_is_certified(setup):
    """Ending a draft after a kept token, for whatever it is, changes no law."""
    result = judge(arm(world(4), setup, 110 if setup.stop == "flat" else 48))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert max(result.bound, result.detectable) <= 0.06


@pytest.mark.medium
def test_where_drafts_end_is_said_and_not_judged():
    candidate = replace(arm(world(4), Setup(stop="after_low"), 48), effective=Effective(gamma=4))
    result = judge(candidate)
    assert result.verdict is Verdict.CERTIFIED
    assert result.details["drafts_ended_early"] > 500
    assert result.details["mean_rank_where_ended"] > result.details["mean_rank_elsewhere"] + 0.2


ENGINE = {
    "chain": plan(),
    "chain that stops where q is flat": plan(options={"stop_below": 0.2}),
    "block": plan(Protocol.BLOCK),
    "tree without replacement": plan(Protocol.TREE, "sequoia", 6, draft="draft"),
    "tree with replacement": plan(Protocol.TREE, "specinfer", 6, draft="draft"),
    "coupled tree": plan(Protocol.GUMBEL, "specinfer", 6, draft="draft"),
}


@pytest.mark.medium
@pytest.mark.parametrize("made", fast_first(ENGINE.values(), 2), ids=ENGINE.keys())
def test_the_engine_keeps_what_it_draws(made):
    result = judge(engine_arm(made, requests=16))
    assert result.verdict is not Verdict.FAULT, result.findings
    assert result.n > 300


@pytest.mark.parametrize(
    ("fault", "named"), fast_first([("drop_low", "q below 0.2"), ("drop_before_flat", "how sure")])
)
@pytest.mark.slow
def test_dropped_tokens_are_found(fault, named):
    for seed in range(5):
        result = judge(arm(world(seed), seeded(Setup(fault=fault), seed), 24))
        assert result.verdict is Verdict.FAULT
        assert any(named in each.message for each in result.findings), result.findings


@pytest.mark.medium
def test_the_effect_is_the_share_that_is_missing():
    """A lower bound of the distance between kept tokens and q; what lies below the threshold is missing as a whole."""
    candidate = arm(world(4), Setup(fault="drop_low"), 24)
    result = judge(candidate)
    (row,) = (each for each in result.details["tests"] if each["name"].endswith("below 0.2"))
    assert result.effect == pytest.approx(row["missing"])
    kept = [request.trace for request in candidate.requests]
    q = np.concatenate([trace.q_rows for trace in kept])
    assert result.effect == pytest.approx(np.where(q < 0.2, q, 0).sum(axis=1).mean())
    assert result.bound > result.effect > 0.2


CATALOGUE = {
    "trimmed_by_own_probability": (16, "q below"),
    "trimmed_by_next_confidence": (128, "how sure the draft is"),
    "forbidden_drafts_dropped": (48, "by p / q"),
}


@pytest.mark.parametrize(("fault", "sized"), fast_first(CATALOGUE.items()), ids=CATALOGUE.keys())
@pytest.mark.slow
def test_faults_of_the_catalogue(fault, sized):
    requests, named = sized
    result = judge(arena_arm(fault, requests))
    assert result.verdict is Verdict.FAULT
    assert named in result.findings[0].message
    assert judge(arena_arm(fault, requests, broken=False)).verdict is not Verdict.FAULT


@pytest.mark.slow
def test_false_alarms_stay_at_their_level():
    """200 clean arms of four kinds at alpha 0.01 instead of 0.001: inside the 99.9 % binomial band."""
    kinds = (
        "whole drafts",
        "coupled draft",
        "drafts that end before a flat q",
        "drafts that end after an unlikely token",
    )
    false, runs = 0, 200
    for seed in range(runs):
        short = replace(HARMLESS[kinds[seed % 4]], sampling=replace(SAMPLED, seed=seed, max_new_tokens=32))
        clean = arm(world(seed % 9, sharpness=(1.0, 1.5, 3.0)[seed % 3]), short, 6)
        false += judge(clean, alpha=0.01).verdict is Verdict.FAULT
    assert false <= binom.ppf(0.999, runs, 0.01)


def test_a_token_that_was_reached_and_not_examined_is_a_fault():
    """The record holds the token, the decision was made without it."""
    clean = arm(world(4), Setup(), 3)
    trace = clean.requests[1].trace
    step = int(np.flatnonzero((trace.n_examined == 1) & (trace.n_emitted == 1))[0])
    x = int(np.cumsum(trace.n_examined)[step]) - 1
    without = {
        name: np.delete(getattr(trace, name), x, axis=0)
        for name in ("examined_node", "examined_p", "examined_q", "examined_uniform", "examined_accepted", "q_rows")
    }
    at = int(np.cumsum(trace.n_emitted)[step]) - 1
    role = put(trace.role, at, Role.BONUS)
    result = judge(changed(clean, 1, n_examined=put(trace.n_examined, step, 0), role=role, **without))
    assert result.verdict is Verdict.FAULT
    assert [(each.request, each.step) for each in result.findings] == [("case-1", step)]


@pytest.mark.medium
def test_too_little_or_missing_evidence_is_no_pass():
    clean = arm(world(4), Setup(), 8)
    few = judge(clean)
    assert few.verdict is Verdict.INCONCLUSIVE
    assert few.detectable > few.margin
    assert "detectable share" in few.summary
    assert judge(arm(world(4), replace(Setup(), sampling=replace(SAMPLED, max_new_tokens=4)), 1)).bound == 1.0
    assert judge(replace(clean, level=Level.L2)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(draft="one_hot"), 2)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(Protocol.GREEDY, sampling=GREEDY), 2)).verdict is Verdict.NOT_RUN
    assert judge(arm(world(4), Setup(level=RecordLevel.SCALARS), 2)).verdict is Verdict.INCONCLUSIVE


STEADY = Effective(steady_drafts=SteadyDrafts(context=4096))


@pytest.mark.medium
def test_steady_drafts_leave_no_arm_undecided():
    """Too few tokens for the bound: nothing was dropped, because accounting counts every draft."""
    few = replace(arm(world(4), Setup(), 8), effective=STEADY)
    result = judge(few)
    assert (result.verdict, result.lacking) == (Verdict.NOT_RUN, False)
    assert "drafts of full length" in result.summary
    assert "no departure in" in result.summary
    unread = judge(replace(arm(world(4), Setup(level=RecordLevel.SCALARS), 2), effective=STEADY))
    assert (unread.verdict, unread.lacking) == (Verdict.NOT_RUN, False)
    enough = judge(replace(arm(world(4), Setup(), 48), effective=STEADY))
    assert enough.verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_steady_drafts_that_are_cut_are_a_fault_all_the_same():
    result = judge(replace(arm(world(4), Setup(fault="drop_low"), 24), effective=STEADY))
    assert result.verdict is Verdict.FAULT


@pytest.mark.parametrize(("tokens", "reason"), [(640, "drafts of full length"), (64_000, None)])
def test_the_plan_asks_nothing_of_steady_drafts(tokens, reason):
    shown = replace(EVERYTHING, steady=True)
    design = Design(requests=10, prompts=10, tokens=tokens, gamma=4, greedy=False, level=Level.L4, shown=shown)
    assert CHECK.plan(CHECK.defaults, design) is None
    foreseen = CHECK.foresee(CHECK.defaults, design)
    assert foreseen is None if reason is None else reason in foreseen


def test_requests_that_share_a_stream_decide_nothing():
    clean = arm(world(4), Setup(), 3)
    header = clean.requests[0].trace.header
    shared = changed(clean, 1, header=replace(clean.requests[1].trace.header, stream=header.stream))
    assert judge(shared).verdict is Verdict.INCONCLUSIVE


def test_the_plan_counts_drafted_tokens():
    design = Design(requests=10, prompts=10, tokens=640, gamma=4, greedy=False, level=Level.L4)
    need = CHECK.plan(CHECK.defaults, design)
    assert need.unit == "drafted tokens"
    assert 1000 < need.units < 3000
    assert CHECK.plan(CHECK.defaults, replace(design, gamma=0)) is None
