"""Stored instances compared: a clean set passes, and every planted difference is found by the comparison it is for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from audit.errors import UserError
from audit.evidence.verdicts import Verdict
from audit.report.comparisons.parity import ParityLimits, run_parity
from audit.store import NewRequest, RunStatus
from tests.audit.invoke import invoke
from tests.audit.store.build import generation, start
from tests.audit.store.conftest import store

__all__ = ["store"]

REQUESTS = 40
STANDARD = ParityLimits()
WIDE = ParityLimits(drift=0.4)
"""So few requests bound a drift loosely."""


def plans(chance=0.5, slope=0.0, until=REQUESTS, seed=11):
    """Steps of every request: each drafted token is kept with a chance that moves by `slope` over the run."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(REQUESTS):
        kept = generator.random((6, 4)) < chance + slope * (index / REQUESTS - 0.5)
        steps = [(4, int(np.argmin([*row, False]))) for row in kept]
        made.append(tuple(steps) if index < until else ((0, 0),) * 6)
    return made


def instance(store, made, seed=0):
    run = store.begin_run(start())
    requests = [
        NewRequest("spec", "chat" if index % 2 else "code", f"c{index}", 0, generation(plan, seed=seed + index))
        for index, plan in enumerate(made)
    ]
    store.add_requests(run, requests)
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


def compared(store, *runs, limits=STANDARD):
    found = run_parity(store, runs, limits)
    return found.exit_code, {one.compared: one for one in found.results}


@pytest.mark.medium
def test_equal_instances_pass(store):
    code, found = compared(store, *(instance(store, plans()) for _ in range(3)), limits=WIDE)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, Verdict.CERTIFIED)
    assert code == 0
    assert (found["acceptance"].effect, found["acceptance"].bound) == (0.0, 0.0)
    assert "80 of 80 answers equal" in found["tokens"].summary


@pytest.mark.medium
def test_an_instance_without_speculation_is_found(store):
    runs = [instance(store, plans()), instance(store, plans(until=0)), instance(store, plans())]
    code, found = compared(store, *runs)
    assert code == 1
    assert found["acceptance"].verdict is Verdict.FAULT
    assert f"{runs[1]} drafted nothing" in found["acceptance"].summary
    assert "instance 2 never drafts, others do" in found["speculating"].summary


@pytest.mark.medium
def test_an_instance_that_accepts_less_is_found(store):
    code, found = compared(store, instance(store, plans()), instance(store, plans(chance=0.2)))
    assert code == 1
    assert found["acceptance"].verdict is Verdict.FAULT
    assert found["acceptance"].effect > 0.05


@pytest.mark.medium
def test_a_drift_that_all_instances_share_is_found(store):
    made = plans(slope=0.8)
    code, found = compared(store, instance(store, made), instance(store, made))
    assert (code, found["acceptance"].verdict, found["drift"].verdict) == (1, Verdict.CERTIFIED, Verdict.FAULT)


@pytest.mark.medium
def test_speculation_that_stops_is_found(store):
    made = plans(until=25)
    code, found = compared(store, instance(store, made), instance(store, made))
    assert code == 1
    assert found["speculating"].verdict is Verdict.FAULT
    assert "the last 15 of 40 have no draft" in found["speculating"].summary


@pytest.mark.medium
def test_too_few_requests_are_undecided(store):
    made = plans()[:3]
    code, found = compared(store, instance(store, made), instance(store, made))
    assert (code, found["drift"].verdict) == (3, Verdict.INCONCLUSIVE)


@pytest.mark.medium
def test_the_command_prints_the_comparisons_and_exits_by_them(store):
    runs = [instance(store, plans()) for _ in range(2)]
    done = invoke("parity", *runs, "--drift", "0.4", "--store", store.url)
    assert done.exit_code == 0
    assert "PASS: the instances do the same" in done.stdout
    document = json.loads(invoke("parity", *runs, "--json", "--store", store.url).stdout)
    assert [one["compared"] for one in document["results"]][:2] == ["acceptance", "tokens"]
    assert [one["run"] for one in document["runs"]] == runs
    stopped = instance(store, plans(until=0))
    assert invoke("parity", runs[0], stopped, "--store", store.url).exit_code == 1


@pytest.mark.medium
@pytest.mark.parametrize("given", [["latest"], ["latest", "latest"], ["a", "b", "--instances", "2"]])
def test_what_cannot_be_compared_is_the_users_error(store, given):
    instance(store, plans())
    done = invoke("parity", *given, "--store", store.url)
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.medium
def test_runs_without_a_common_arm_are_named(store):
    other = store.begin_run(start(arms=()))
    with pytest.raises(UserError, match="share no candidate arm"):
        run_parity(store, [instance(store, plans()), other], ParityLimits())
