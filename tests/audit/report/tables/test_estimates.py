"""The estimators of stored arms: of the engine's own steps, of accounts in answers, and of a server's counters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from audit.evidence.records import ArmKind, Level
from audit.report.tables.acceptance import arm_estimates, run_estimates
from audit.store import NewArm, NewRequest, RunStatus
from audit.store.sums.drafts import ArmDrafts, CounterGrowth
from engine.record.effective import Effective
from tests.audit.invoke import invoke
from tests.audit.store.build import generation, start
from tests.audit.store.conftest import store
from tests.support.planned_runs import PLANS, filled

__all__ = ["store"]

SERVED = NewArm(
    "served", ArmKind.CANDIDATE, Level.L0, {}, Effective.from_json({"server_counters": True, "gamma": 4}), True
)


def values(found):
    return {one.estimator.value: one.value for one in found.values}


@pytest.mark.medium
def test_the_engines_own_steps_give_all_four(store):
    run = filled(store)
    (found,) = run_estimates(store, store.load_run(run))
    plans = [[step for step in plan if step[0]] for plan in PLANS]
    plans = [plan for plan in plans if plan]
    rates = [sum(kept for _, kept in plan) / sum(many for many, _ in plan) for plan in plans]
    lengths = [1 + sum(kept for _, kept in plan) / len(plan) for plan in plans]
    steps = [step for plan in plans for step in plan]
    assert values(found) == {
        "token_weighted_rate": pytest.approx(sum(kept for _, kept in steps) / sum(many for many, _ in steps)),
        "request_weighted_rate": pytest.approx(sum(rates) / len(rates)),
        "token_weighted_length": pytest.approx(1 + sum(kept for _, kept in steps) / len(steps)),
        "request_weighted_length": pytest.approx(sum(lengths) / len(lengths)),
    }
    assert {one.requests for one in found.values} == {len(plans)}


@pytest.mark.medium
def test_the_estimates_are_the_same_before_and_after_the_run_ends(store):
    run = filled(store)
    before = run_estimates(store, store.load_run(run))
    store.finish_run(run, RunStatus.FINISHED, 0)
    assert run_estimates(store, store.load_run(run)) == before
    assert arm_estimates(store.load_run(run).candidates[0], store.figures.drafts(run, "spec")) == before[0]


def served(store, accounts, counters=None):
    run = store.begin_run(start(arms=(SERVED,)))
    for index, account in enumerate(accounts):
        facts = {"speculation": account}
        if counters is not None and index == len(accounts) - 1:
            facts["server_counters"] = {**counters, "requests": len(accounts)}
        made = generation(((0, 0),) * 12, seed=index, facts=facts)
        store.add_requests(run, [NewRequest("served", "chat", f"c{index}", 0, made)])
    return run


def test_accounts_of_answers_and_counters_stand_side_by_side(store):
    counters = {"drafted": 20, "accepted": 10, "samples": {"vllm:spec_decode_num_drafts_total": 5.0}}
    accounts = [{"steps": 3, "drafted": 10, "accepted": 9}, {"steps": 1, "drafted": 2, "accepted": 0}]
    (found,) = run_estimates(store, store.load_run(served(store, accounts, counters)))
    assert values(found) == {
        "token_weighted_rate": 0.75,
        "request_weighted_rate": pytest.approx(0.45),
        "token_weighted_length": 3.25,
        "request_weighted_length": 2.5,
        "counter_rate": 0.5,
        "counter_length": 3.0,
    }


def test_an_account_that_accepts_more_than_it_drafted_gives_no_estimate(store):
    run = served(store, [{"steps": 3, "drafted": 10, "accepted": 9}, {"steps": 1, "drafted": 2, "accepted": 3}])
    (found,) = run_estimates(store, store.load_run(run))
    assert found.values == ()
    assert found.contradictions == ("c1#0: 3 accepted tokens are more than the 2 drafted ones",)
    shown = invoke("show", run, "--store", store.url).stdout
    assert "no estimate of acceptance, its account contradicts itself: c1#0: 3 accepted tokens" in shown


def test_a_request_that_nobody_counted_leaves_the_counters_only(store):
    arms = store.load_run(served(store, [{"steps": 3, "drafted": 10, "accepted": 9}])).arms
    assert store.figures.drafts(store.resolve("latest"), "absent") == ArmDrafts(())
    drafts = replace(store.figures.drafts(store.resolve("latest"), "served"), uncounted=1)
    assert arm_estimates(arms[0], drafts).values == ()
    counted = arm_estimates(arms[0], replace(drafts, counters=CounterGrowth(None, 20, 10)))
    assert values(counted) == {"counter_rate": 0.5}


@pytest.mark.medium
def test_show_prints_every_estimator_with_aiperfs_name(store):
    run = filled(store)
    shown = invoke("show", run, "--store", store.url, "--wide").stdout
    assert "acceptance by estimator" in shown
    assert "spec_decode_overall_draft_acceptance_rate" in shown
    (arm,) = json.loads(invoke("show", run, "--json", "--store", store.url).stdout)["estimates"]
    assert [one["estimator"] for one in arm["values"]][:2] == ["token_weighted_rate", "request_weighted_rate"]
