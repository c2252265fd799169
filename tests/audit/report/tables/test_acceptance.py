"""Acceptance from the store's sums equals the engine's own figures of the same traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.report.tables.acceptance import run_acceptance
from audit.store import NewArm, NewCheck, RunStatus
from engine.record.effective import Effective
from engine.record.metrics import acceptance
from tests.audit.store.build import start
from tests.audit.store.conftest import store
from tests.support.planned_runs import PLANS, filled

__all__ = ["store"]

STRATA = [{"name": "all", "n": 40, "observed": 20, "expected": 21.5, "z": -0.5, "p": 0.6, "p_adjusted": 1.0}]


def arms(**effective):
    base, spec = start().arms
    drafting = Effective.from_json({"gamma": 4, "proposer": "draft_model", **effective})
    silent = NewArm("silent", ArmKind.CANDIDATE, Level.L4, {}, Effective.from_json({}), True)
    return (base, replace(spec, spec={"baseline": "base"}, effective=drafting), silent)


def read(store, run):
    return run_acceptance(store, store.load_run(run), store.checks(run))


@pytest.mark.medium
def test_acceptance_is_that_of_the_traces(store):
    run = filled(store, arms=arms())
    store.finish_run(run, RunStatus.FINISHED, 0)
    (one,) = read(store, run).arms
    own = acceptance([request.trace for request in store.load_arm(run, "spec").requests])
    assert (one.counts.drafted, one.counts.accepted, one.steps) == (own.drafted, own.accepted, own.steps)
    assert one.drafting == own.drafting_steps
    assert one.rate == own.draft_acceptance_rate
    assert one.acceptance_length == own.acceptance_length
    assert one.tokens_per_step == own.tokens_per_forward
    assert tuple(place.unconditional for place in one.places) == tuple(kept / own.drafting_steps for kept in own.kept)
    plain = sum(not drafted for plan in PLANS for drafted, _ in plan)
    counted = [length.steps for length in one.lengths]
    assert [counted[0] + plain, *counted[1:]] == list(own.histogram)


@pytest.mark.medium
def test_the_conditional_rate_counts_the_steps_that_got_there(store):
    run = filled(store, arms=arms())
    (one,) = read(store, run).arms
    steps = [step for plan in PLANS for step in plan if step[0]]
    for place in one.places:
        there = [kept for drafted, kept in steps if kept >= place.place - 1 and drafted >= place.place]
        assert place.reached == len(there)
        assert place.conditional == sum(kept >= place.place for kept in there) / len(there)
    assert one.alpha == sum(kept for _, kept in steps) / sum(place.reached for place in one.places)
    assert one.model_length == pytest.approx(sum(one.alpha**power for power in range(5)))


@pytest.mark.medium
def test_a_tree_has_no_alpha_and_a_lower_bound(store):
    run = filled(store, arms=arms(proposer_shape="tree"))
    (one,) = read(store, run).arms
    assert (one.alpha, one.model_length) == (None, None)
    assert one.places[1].reached == one.places[0].kept


@pytest.mark.medium
def test_speed_is_that_of_the_times(store):
    run = filled(store, arms=arms())
    made = read(store, run)
    (one,) = made.arms
    tokens = sum(kept + 1 for plan in PLANS for _, kept in plan)
    plain = sum(len(PLANS[index]) + sum(kept for _, kept in PLANS[index]) if index % 2 else 2 for index in range(11))
    assert one.speed_up.measured == pytest.approx(tokens / plain)  # the same time for both
    count = sum(map(len, PLANS))
    step = sum(18 + drafted for plan in PLANS for drafted, _ in plan) / count
    spent, others = 0, 0
    for index, plan in enumerate(PLANS):
        own = plan if index % 2 else ((0, 0), (0, 0))
        spent, others = spent + sum(18 + drafted for drafted, _ in own), others + len(own)
    assert one.speed_up.modelled == pytest.approx(tokens / count / (step / (spent / others)))
    assert (one.speed_up.low, one.speed_up.high) == (None, None)
    assert [latency.arm for latency in made.latencies] == ["base", "spec"]
    assert made.silent == (("silent", "it has no requests"),)


@pytest.mark.medium
def test_an_endpoint_whose_drafts_nobody_counted_has_latencies_only(store):
    made = read(store, filled(store, arms=arms(server_counters={})))
    assert made.arms == ()
    assert made.silent[0] == ("spec", "nobody counted its drafts")
    assert [latency.arm for latency in made.latencies] == ["base", "spec"]


@pytest.mark.medium
def test_results_of_checks_give_theory_and_the_interval(store):
    run = filled(store, arms=arms())
    theory = CheckResult(Verdict.CERTIFIED, "as theory has it", details={"strata": STRATA})
    store.add_check(run, NewCheck("spec", "acceptance_theory", "acceptance", Level.L3, theory))
    speed = {"speed_up": {"estimate": 1.5, "low": 1.25, "high": None}}
    store.add_check(
        run, NewCheck("spec", "performance", "cost", Level.L0, CheckResult(Verdict.NOT_RUN, "", details=speed))
    )
    (one,) = read(store, run).arms
    (stratum,) = one.theory
    assert (stratum["observed"], stratum["expected"], stratum["p_adjusted"]) == (20, 21.5, 1.0)
    assert (one.speed_up.measured, one.speed_up.low, one.speed_up.high) == (1.5, 1.25, None)
