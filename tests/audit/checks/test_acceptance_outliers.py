"""One request of fifty with a broken draft is named; clean arms, lengths and accounts of endpoints."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from audit.checks.acceptance_outliers import CHECK, plan_of
from audit.checks.base.interface import evaluate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine import faults
from engine.core.types import Protocol, SamplingParams
from engine.faults.interface import Scenario
from tests.audit.checks.external_arms import answered
from tests.audit.checks.external_arms import evidence as external
from tests.audit.checks.simulator import SAMPLED, Setup, arm, world
from tests.bench.growing import Growing

LONG = Setup(sampling=replace(SAMPLED, max_new_tokens=256))
PAIR = world(6)
STALE = replace(PAIR, draft=world(77).draft)
"""The target with the rows of another text's draft, as from a stale cache."""


@cache
def clean():
    """50 requests of one domain."""
    made = arm(PAIR, LONG, 50)
    return replace(made, requests=tuple(replace(each, domain="chat") for each in made.requests))


def with_stale(*places):
    """The same arm, in which these requests decoded with a stale draft cache."""
    odd = arm(STALE, LONG, len(places), tag="stale").requests
    requests = list(clean().requests)
    for place, request in zip(places, odd, strict=True):
        requests[place] = replace(request, domain="chat")
    return replace(clean(), requests=tuple(requests))


def judged(candidate, **params):
    return evaluate(CHECK, Evidence(candidate), params)


@pytest.mark.medium
def test_an_arm_of_like_requests_is_certified_with_the_loss_that_would_show():
    found = judged(clean())
    assert found.verdict is Verdict.CERTIFIED, found.summary
    assert found.n == 50
    assert found.findings == ()
    assert found.detectable == found.bound <= found.margin == 0.8
    assert judged(clean(), margin=0.1).verdict is Verdict.INCONCLUSIVE


@pytest.mark.medium
def test_one_request_of_fifty_with_a_stale_draft_is_named():
    found = judged(with_stale(17))
    assert found.verdict is Verdict.FAULT, found.summary
    (finding,) = found.findings
    assert finding.request == "stale-0"
    assert "fewer than the" in finding.message
    first = found.details["requests"][0]
    assert first["request"] == "stale-0"
    assert first["accepted"] < first["expected"] / 2
    assert first["chance"] <= 0.005 < found.details["requests"][1]["chance"]


@pytest.mark.medium
def test_three_of_fifty_are_named():
    found = judged(with_stale(3, 17, 40))
    assert {each.request for each in found.findings} == {"stale-0", "stale-1", "stale-2"}


@pytest.mark.medium
def test_every_draft_accepted_stands_out_too():
    odd = arm(replace(PAIR, draft=PAIR.target), LONG, 1, tag="loop").requests[0]
    requests = (*clean().requests[:-1], replace(odd, domain="chat"))
    found = judged(replace(clean(), requests=requests))
    assert found.findings[0].request == "loop-0"
    assert "more than the" in found.findings[0].message


@pytest.mark.medium
def test_short_answers_show_less():
    """Three steps or so: even the broken request is no fault."""
    short = Setup(sampling=replace(SAMPLED, max_new_tokens=6))
    odd = arm(STALE, short, 1, tag="stale").requests
    found = judged(replace(clean(), requests=(*arm(PAIR, short, 49).requests, *odd)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.bound > judged(clean()).bound


@pytest.mark.medium
def test_domains_are_judged_by_their_own_requests():
    two = tuple(replace(each, domain=("chat", "code")[at < 25]) for at, each in enumerate(with_stale(17).requests))
    found = judged(replace(clean(), requests=two))
    assert found.details["domains"].keys() == {"chat", "code"}
    assert "of domain code" in found.findings[0].message
    few = tuple(replace(each, domain="rare") if at < 5 else each for at, each in enumerate(clean().requests))
    found = judged(replace(clean(), requests=few))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.details["not_judged"] == {"rare": 5}


@pytest.mark.medium
def test_requests_that_differ_normally_leave_a_lead():
    """The effect of the odd request is beyond normal tails, and within exponential ones."""
    generator = np.random.default_rng(4)
    effects = np.append(generator.normal(0.0, 0.3, 59), -2.0)
    rates = 1.0 / (1.0 + np.exp(-(0.85 + effects)))
    accounts = [without_steps(account(300, int(count))) for count in generator.binomial(300, rates)]
    found = evaluate(CHECK, external(replace(each, request_id=f"r{at}") for at, each in enumerate(accounts)), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.findings[0].request == "r59"
    assert "if the requests differ normally" in found.findings[0].message


def account(drafted, accepted, **more):
    return {"speculation": {"drafted": drafted, "accepted": accepted, **more}}


def without_steps(facts):
    """A request of an endpoint: its record has no drafts, its answer an account."""
    request = answered(0, facts)
    trace = request.trace
    return replace(request, trace=replace(trace, n_drafted=np.zeros_like(trace.n_drafted)))


@pytest.mark.parametrize(
    ("facts", "plan"),
    [
        ({}, ()),
        (account(3, 2), ((1, 1), (1, 1), (1, 0))),
        (account(2, 3), ()),
        (account(6, 3, per_step_drafted=[4, 0, 2], per_step_accepted=[1, 0, 2]), ((4, 1), (2, 2))),
        (account(6, 3, per_step_drafted=[4, 2], per_step_accepted=[1, 3]), ()),
        ({"speculation": "none"}, ()),
    ],
)
def test_accounts_of_answers(facts, plan):
    assert plan_of(without_steps(facts)) == plan


def test_the_records_own_steps_come_first():
    assert plan_of(answered(0, account(300, 1))) == ((2, 1),)
    request = clean().requests[0]
    plan = plan_of(request)
    assert sum(kept for _, kept in plan) == request.trace.n_accepted
    assert sum(drafted for drafted, _ in plan) == int(request.trace.n_drafted.sum())


def test_an_endpoint_with_one_odd_request():
    requests = [without_steps(account(200, 140)) for _ in range(39)] + [without_steps(account(200, 20))]
    requests = [replace(each, request_id=f"r{at}") for at, each in enumerate(requests)]
    found = evaluate(CHECK, external(requests), {})
    assert found.verdict is Verdict.FAULT
    assert [each.request for each in found.findings] == ["r39"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "verdict"), [(None, Verdict.CERTIFIED), ("drafts_of_another_request", Verdict.FAULT)]
)
def test_the_real_loop_with_one_request_that_drafts_after_another_text(fault, verdict):
    """50 requests of the engine; the tenth is of an arm with the fault, or of a second clean one."""
    requests = list(looped(None, 3, 50))
    requests[9] = replace(looped(fault, 3 if fault else 4, 2)[1], request_id="odd")
    found = judged(replace(clean(), requests=tuple(requests)))
    assert found.verdict is verdict, found.summary
    assert [each.request for each in found.findings] == (["odd"] if fault else [])


@cache
def looped(fault, seed, count):
    """Requests of 192 tokens of the engine over scripted models."""
    scenario = faults.load(fault).scenario if fault else Scenario()
    sampling = SamplingParams(temperature=1.0, max_new_tokens=192)
    scenario = replace(scenario, protocol=Protocol.CHAIN, sampling=sampling)
    return Growing(scenario, fault, seed, ()).grown(192 * count).candidate.requests


def test_nothing_to_judge():
    undrafted = [without_steps({}) for _ in range(30)]
    assert evaluate(CHECK, external(undrafted), {}).verdict is Verdict.NOT_RUN
    few = judged(replace(clean(), requests=clean().requests[:5]))
    assert few.verdict is Verdict.NOT_RUN
    assert "min_answers" in few.summary


@pytest.mark.slow
def test_seeds_of_stale_and_clean_arms():
    """Ten arms each: every stale request is named, and no other one."""
    for seed in range(10):
        fresh = arm(PAIR, LONG, 50, tag=f"seed{seed}").requests
        odd = arm(STALE, LONG, 1, tag=f"stale{seed}").requests
        alike = [replace(each, domain="chat") for each in (*fresh, *odd)]
        assert judged(replace(clean(), requests=tuple(alike[:50]))).verdict is not Verdict.FAULT
        found = judged(replace(clean(), requests=tuple(alike[1:])))
        assert [each.request for each in found.findings if found.verdict is Verdict.FAULT] == [f"stale{seed}-0"]
