"""Score differences of paired samples: what is found, and how often the interval covers."""

from __future__ import annotations

import numpy as np
import pytest

from audit.serve.evaluations.comparison import ScoredSample, score_differences, unseen_changes

SIMULATIONS = 400


def samples(scores, task="t", metric="m"):
    return [ScoredSample(task, str(at), {metric: float(score)}, (f"r{at}",)) for at, score in enumerate(scores)]


def interval_of(off, on, confidence=0.99):
    (found,) = score_differences(samples(off), samples(on), confidence)
    return found


def drawn(generator, n, worse, better):
    """Scores of 0 and 1 whose mean difference is better - worse."""
    kind = generator.choice(3, size=n, p=[worse, better, 1 - worse - better])
    base = generator.integers(0, 2, size=n)
    return np.where(kind == 0, 1, np.where(kind == 1, 0, base)), np.where(kind == 0, 0, np.where(kind == 1, 1, base))


@pytest.mark.slow
@pytest.mark.parametrize(("worse", "better"), [(0.05, 0.05), (0.12, 0.02), (0.0, 0.01)])
def test_the_interval_covers_at_least_as_often_as_it_says(worse, better):
    # misses of a 90 % interval in 400 evaluations of 60 samples: above 59 with probability 0.001 if it covers just so
    generator = np.random.default_rng(20261126)
    misses = 0
    for _ in range(SIMULATIONS):
        found = interval_of(*drawn(generator, 60, worse, better), confidence=0.9)
        misses += not found.interval.low <= better - worse <= found.interval.high
    assert misses <= 59


@pytest.mark.slow
def test_a_planted_difference_is_found_and_none_is_not():
    # a loss of 15 % of 400 samples: found in at least 95 of 100 evaluations; clean ones alarm at most 5 times in 100
    generator = np.random.default_rng(7)
    planted = sum(interval_of(*drawn(generator, 400, 0.16, 0.01)).differs for _ in range(100))
    clean = sum(interval_of(*drawn(generator, 400, 0.05, 0.05)).differs for _ in range(100))
    assert planted >= 95
    assert clean <= 5


def test_equal_scores_have_an_interval_around_nothing():
    found = interval_of([1, 0] * 100, [1, 0] * 100)
    assert (found.difference, found.differs, found.samples) == (0.0, False, 200)
    assert -0.08 < found.interval.low < 0 < found.interval.high < 0.08


def test_repetitions_are_one_sample():
    repeated = [ScoredSample("t", "0", {"m": score}, ()) for score in (1.0, 0.0)]
    (found,) = score_differences(repeated, repeated)
    assert (found.samples, found.off, found.on) == (1, 0.5, 0.5)
    assert found.interval.low < -0.9
    assert found.interval.high > 0.9


def test_intervals_share_their_error():
    off = [ScoredSample("t", str(at), {"m": 0.5, "k": 0.5}, ()) for at in range(100)]
    alone, both = interval_of([0.5] * 100, [0.5] * 100), score_differences(off, off)
    assert len(both) == 2
    assert all(found.interval.high > alone.interval.high for found in both)


def test_scores_outside_the_unit_interval_have_no_interval():
    found = interval_of([0.0, 30.0], [0.0, 31.0])
    assert (found.difference, found.interval, found.differs) == (0.5, None, False)


def test_changes_that_no_score_sees_are_counted():
    off, on = samples([1, 0, 1, 1]), samples([1, 1, 1, 1])
    assert unseen_changes(off, on, ["r0#0", "r1#0"]) == 1
    assert unseen_changes(off, on, []) == 0
