"""The detector of `audit watch`: its bound holds on clean traffic, a drop is found, and broken updates are caught."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.acceptance import surveillance
from audit.stats.acceptance.surveillance import (
    ChangeDirection,
    Looks,
    WatchPlan,
    alternatives,
    extended,
    log_ratios,
    start,
)
from tests.support.watch_traffic import (
    GAMMA,
    REQUEST,
    Traffic,
    alarmed,
    at_the_reference,
    bursty,
    differing_requests,
    dropped,
)

RATE = 0.63
LOUD = WatchPlan(ChangeDirection.FALL, RATE, GAMMA, alpha=0.5)
"""Half an alarm a month, so that few months show a broken bound."""
MONTHS = 30
MOST_LOUD = int(binom.ppf(0.999, MONTHS, 0.5))


def months_with_alarms(plan, traffic, months):
    seeds = map(np.random.default_rng, range(months))
    return sum(alarmed(plan, traffic(rng)) for rng in seeds)


def worst(rng):
    return at_the_reference(rng, RATE)


def worst_of_long_looks(rng):
    return at_the_reference(rng, RATE, Traffic(looks=4320, seconds=600.0))


def one_by_one(plan, looks):
    """The recursion as it is defined, without logarithms."""
    sums, weight, alarms = np.zeros(len(surveillance.SHARES)), 60.0 / surveillance.MONTH_S, []
    factors = np.exp(log_ratios(plan, looks.drafted, looks.accepted))
    for look, factor in enumerate(factors):
        sums = (sums + weight) * factor
        weight = looks.seconds[look] / surveillance.MONTH_S
        if sums.mean() >= 1 / plan.alpha:
            alarms.append((look, alternatives(plan)[int(sums.argmax())]))
            sums = np.zeros_like(sums)
    return alarms


@pytest.mark.parametrize("direction", ChangeDirection)
@pytest.mark.parametrize("unit", [GAMMA, 40.0])
def test_a_drafts_factor_has_mean_one_at_most_for_every_law_that_keeps_the_reference(direction, unit):
    plan, rng, means = WatchPlan(direction, RATE, unit), np.random.default_rng(0), []
    for _ in range(300):
        # a law of (drafted, accepted) on the integer triangle whose means have exactly the ratio of the reference
        drafted, accepted = (side.ravel() for side in np.mgrid[0 : GAMMA + 1, 0 : GAMMA + 1])
        inside = accepted <= drafted
        drafted, accepted = drafted[inside].astype(float), accepted[inside].astype(float)
        law = rng.dirichlet(np.full(len(drafted), 0.2))
        gap = law @ accepted - RATE * (law @ drafted)
        corner = np.zeros(len(law))
        corner[(drafted == GAMMA) & (accepted == (0 if gap > 0 else GAMMA))] = 1.0
        step = RATE * GAMMA if gap > 0 else (1 - RATE) * GAMMA
        share = abs(gap) / (abs(gap) + step)
        law = (1 - share) * law + share * corner
        assert law @ accepted == pytest.approx(RATE * (law @ drafted))
        means.append(law @ np.exp(log_ratios(plan, drafted, accepted)))
    assert np.max(means) <= 1.0 + 1e-12
    assert np.max(means) > 0.97


def test_the_bound_is_reached_by_drafts_accepted_whole_or_not_at_all():
    for direction in ChangeDirection:
        both = np.exp(log_ratios(WatchPlan(direction, RATE, GAMMA), np.full(2, GAMMA), np.array([0.0, GAMMA])))
        assert np.allclose((1 - RATE) * both[0] + RATE * both[1], 1.0)


@pytest.mark.medium
@pytest.mark.parametrize("chunk", [1, 7, 1024, 3000])
def test_chunks_give_the_alarms_of_the_plain_recursion(chunk):
    plan = WatchPlan(ChangeDirection.FALL, RATE, GAMMA)
    looks = dropped(np.random.default_rng(3), 0.7, 0.3, Traffic(20.0, 3000), 1000)
    state = start(60.0)
    for begin in range(0, 3000, chunk):
        part = slice(begin, begin + chunk)
        state = extended(state, plan, Looks(looks.drafted[part], looks.accepted[part], looks.seconds[part]))
    assert [(alarm.look, alarm.rate) for alarm in state.alarms] == one_by_one(plan, looks)
    assert len(state.alarms) > 3
    assert abs(state.alarms[0].since - 1000) < 20


def test_clean_traffic_at_the_reference_keeps_the_bound():
    found = months_with_alarms(LOUD, worst_of_long_looks, MONTHS)
    assert 0 < found <= MOST_LOUD


@pytest.mark.medium
@pytest.mark.parametrize("broken", ["tokens are not independent", "a start weighs a month", "misses are not counted"])
def test_a_broken_update_does_not_keep_it(broken, monkeypatch):
    plan = LOUD
    if broken == "tokens are not independent":
        plan = WatchPlan(ChangeDirection.FALL, RATE, 1.0, LOUD.alpha)
    elif broken == "a start weighs a month":
        monkeypatch.setattr(surveillance, "MONTH_S", 600.0)
    else:
        monkeypatch.setattr(
            surveillance, "log_ratios", lambda plan, drafted, accepted: -0.01 * log_ratios(plan, accepted, accepted)
        )
    assert months_with_alarms(plan, worst_of_long_looks, MONTHS) > MOST_LOUD


def test_a_rise_is_the_mirror_of_a_fall():
    looks = dropped(np.random.default_rng(1), 0.7, 0.15, Traffic(20.0, 2000), 500)
    mirrored = Looks(looks.drafted, looks.drafted - looks.accepted, looks.seconds)
    fall = extended(start(60.0), WatchPlan(ChangeDirection.FALL, RATE, GAMMA), looks)
    rise = extended(start(60.0), WatchPlan(ChangeDirection.RISE, 1 - RATE, GAMMA), mirrored)
    assert [alarm.look for alarm in rise.alarms] == [alarm.look for alarm in fall.alarms]
    assert rise.log_evidence == pytest.approx(fall.log_evidence)


def test_looks_without_drafts_are_no_evidence():
    quiet = Looks(np.zeros(10), np.zeros(10), np.full(10, 60.0))
    state = extended(start(60.0), LOUD, quiet)
    assert state.log_evidence == pytest.approx(math.log(10 * 60.0 / surveillance.MONTH_S))


def test_impossible_input_is_refused():
    for values in ((0.0, 5, 0.01), (0.5, 0.5, 0.01), (0.5, 5, 1.0)):
        with pytest.raises(ValueError, match=r"reference|unit|alpha"):
            WatchPlan(ChangeDirection.FALL, *values)
    for drafted, accepted, seconds in ((1.0, 2.0, 60.0), (1.0, -1.0, 60.0), (1.0, 1.0, 0.0)):
        with pytest.raises(ValueError, match="a look needs"):
            extended(start(60.0), LOUD, Looks(np.array([drafted]), np.array([accepted]), np.array([seconds])))


@pytest.mark.slow
def test_two_hundred_clean_months_give_no_more_alarms_than_stated():
    months, plan = 200, WatchPlan(ChangeDirection.FALL, RATE, GAMMA)
    # 0.1 % of correct detectors fail this
    most = int(binom.ppf(0.999, months, plan.alpha))
    assert months_with_alarms(plan, worst, months) <= most
    assert months_with_alarms(plan, lambda rng: bursty(rng, RATE), months) == 0


@pytest.mark.slow
def test_requests_that_differ_need_a_request_as_unit():
    by_draft = WatchPlan(ChangeDirection.FALL, RATE, GAMMA)
    by_request = WatchPlan(ChangeDirection.FALL, RATE, GAMMA * REQUEST)
    assert months_with_alarms(by_draft, differing_requests, 5) == 5
    assert months_with_alarms(by_request, differing_requests, 50) == 0
