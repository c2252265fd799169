"""The cost formulae against simulation, against their limits and against brute force."""

import dataclasses

import numpy as np
import pytest

from engine.core.types import Protocol, SamplingParams
from engine.record.cost import Costs, StepTimes, best_gamma, costs, expected_tokens, speedup, speedup_of, step_times
from tests.engine import build

GREEDY = SamplingParams(max_new_tokens=3)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
def test_expected_tokens_is_the_sum_over_run_lengths(alpha, gamma):
    """One token always, and one more for every prefix of the draft that is accepted."""
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)), rel=1e-12)


def test_expected_tokens_of_a_simulation():
    accepted = np.random.default_rng(0).random((200_000, 5)) < 0.7
    lengths = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    assert lengths.mean() == pytest.approx(expected_tokens(0.7, 5), abs=4 * lengths.std() / np.sqrt(200_000))


def test_speedup_divides_by_the_cost_of_a_step():
    assert speedup(0.8, 4, rho=0.1) == pytest.approx((1 - 0.8**5) / 0.2 / 1.4)
    assert speedup(0.8, 4, rho=0.1, sigma=1.2) == pytest.approx((1 - 0.8**5) / 0.2 / 1.6)
    assert speedup(1.0, 4, rho=0.0) == 5.0
    assert speedup(0.5, 0, rho=0.3) == 1.0


def test_speculation_that_costs_more_than_it_brings_is_not_done():
    assert best_gamma(0.1, rho=0.5) == 0
    assert best_gamma(0.0, rho=0.01) == 0
    assert best_gamma(0.8, rho=0.0, sigma=10.0) == 0


@pytest.mark.parametrize("alpha", [0.4, 0.7, 0.9])
@pytest.mark.parametrize("rho", [0.02, 0.1, 0.3])
def test_best_gamma_by_trying_all(alpha, rho):
    values = [1.0] + [speedup(alpha, gamma, rho, 1.1) for gamma in range(1, 17)]
    assert best_gamma(alpha, rho, 1.1) == int(np.argmax(values))


def test_a_better_or_cheaper_draft_is_never_drafted_less():
    assert sorted(best_gamma(alpha, 0.05) for alpha in (0.2, 0.5, 0.8, 0.95)) == [
        best_gamma(alpha, 0.05) for alpha in (0.2, 0.5, 0.8, 0.95)
    ]
    assert best_gamma(0.8, 0.01) >= best_gamma(0.8, 0.2)
    assert best_gamma(1.0, 0.01, most=5) == 5


def steps(draft_us, verify_us, batch):
    (trace,) = build.traces(build.generate(build.Setup(None, Protocol.GREEDY), build.requests(1, GREEDY))).values()
    return dataclasses.replace(
        trace,
        position=np.arange(len(batch)),
        draft_us=np.array(draft_us),
        verify_us=np.array(verify_us),
        batch=np.array(batch),
    )


def test_a_step_that_stands_in_several_traces_counts_once():
    together = steps([10, 30], [100, 200], [2, 1])
    other = steps([10], [100], [2])
    assert step_times([together, other]) == StepTimes(20.0, 150.0)
    assert np.isnan(step_times([]).draft_us)


def test_costs_are_in_plain_forwards():
    found = costs(StepTimes(80.0, 150.0), StepTimes(1.0, 100.0), gamma=4)
    assert found == Costs(pytest.approx(0.2), pytest.approx(1.5))
    assert speedup_of(3.0, 4, found) == pytest.approx(3.0 / (1.5 + 0.8))
