import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.acceptance.drift import (
    SHIFTS,
    AcceptanceCounts,
    RecordedRate,
    acceptance_drift,
    against_recorded,
    detector,
    extend,
    mean_recorded,
    shift_ratios,
)
from audit.stats.equivalence import EquivalenceDecision


def builds(rng, change, prompts=60):
    """Two builds on the same prompts, some easy, some hard."""
    level = rng.beta(3, 2, size=prompts)
    found = []
    for rate in (np.clip(level + change, 0, 1), level):
        drafted = rng.integers(20, 120, size=prompts)
        found.append(
            AcceptanceCounts(rng.binomial(drafted, rate).astype(float), drafted.astype(float), np.arange(prompts))
        )
    return found


def test_drift_interval_covers_no_change_and_excludes_a_change():
    runs = 400
    intervals = [acceptance_drift(*builds(np.random.default_rng(seed), 0.0), 0.95) for seed in range(runs)]
    assert sum(not each.low <= 0 <= each.high for each in intervals) <= binom.ppf(0.999, runs, 0.06)
    changed = [acceptance_drift(*builds(np.random.default_rng(seed), -0.15)) for seed in range(40)]
    assert sum(each.high < 0 for each in changed) >= 38


def test_pairing_by_prompt_narrows_the_interval():
    own, reference = builds(np.random.default_rng(1), 0.0)
    drafted = np.full(60, 100.0)
    own, reference = (
        AcceptanceCounts(100 * each.accepted / each.drafted, drafted, each.prompt) for each in (own, reference)
    )
    shuffled = AcceptanceCounts(own.accepted, own.drafted, np.random.default_rng(2).permutation(60))
    assert acceptance_drift(own, reference).se < 0.5 * acceptance_drift(shuffled, reference).se


def test_drift_needs_the_same_prompts_and_drafts():
    own, reference = builds(np.random.default_rng(1), 0.0)
    with pytest.raises(ValueError, match="same prompts"):
        acceptance_drift(own, AcceptanceCounts(reference.accepted, reference.drafted, reference.prompt + 1))
    with pytest.raises(ValueError, match="without drafted"):
        acceptance_drift(own, AcceptanceCounts(np.zeros(60), np.zeros(60), reference.prompt))


def normal_interval(rng, rate, n=400):
    estimate = rng.binomial(n, rate) / n
    half = 2.576 * np.sqrt(estimate * (1 - estimate) / n)
    return RecordedRate(estimate, estimate - half, estimate + half)


def test_recorded_intervals_are_combined_with_the_right_coverage():
    runs, missed = 2000, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        found = against_recorded(normal_interval(rng, 0.75), normal_interval(rng, 0.7), 0.1)
        missed += not found.interval.low <= 0.05 <= found.interval.high
    assert missed <= binom.ppf(0.999, runs, 0.012)


def test_a_change_beyond_the_margin_is_a_fault():
    before = RecordedRate(0.70, 0.69, 0.71)
    assert against_recorded(RecordedRate(0.70, 0.69, 0.71), before, 0.02).decision is EquivalenceDecision.CERTIFIED
    assert against_recorded(RecordedRate(0.60, 0.59, 0.61), before, 0.02).decision is EquivalenceDecision.FAULT
    assert against_recorded(RecordedRate(0.68, 0.67, 0.69), before, 0.02).decision is EquivalenceDecision.INCONCLUSIVE
    with pytest.raises(ValueError, match=r"0\.95"):
        against_recorded(RecordedRate(0.7, 0.6, 0.8, 0.95), before, 0.02)


def stream(rng, n, shift=0.0):
    """Flags whose odds are exp(shift) times those that are claimed."""
    chance = rng.beta(4, 2, size=n)
    odds = np.exp(shift) * chance / (1 - chance)
    return rng.random(n) < odds / (1 + odds), chance


def test_each_shift_is_a_likelihood_ratio():
    chance = np.array([0.1, 0.5, 0.93])
    accepted, rejected = (np.exp(shift_ratios(np.full(3, flag), chance)) for flag in (True, False))
    assert np.allclose(chance[:, None] * accepted + (1 - chance[:, None]) * rejected, 1.0)
    odds = np.exp(SHIFTS[-1]) * chance / (1 - chance)
    assert np.allclose(accepted[:, -1] * chance, odds / (1 + odds))


def plain_recursion(accepted, chance, alpha):
    """One flag at a time: every sum gains a start, and is multiplied by its ratio."""
    sums, alarms, since = np.zeros(len(SHIFTS)), [], 0
    for index, ratio in enumerate(np.exp(shift_ratios(accepted, chance))):
        sums = ratio * (sums + 1)
        if sums.mean() >= 1 / alpha:
            alarms.append((index, SHIFTS[int(sums.argmax())]))
            sums, since = np.zeros(len(SHIFTS)), index + 1
    assert since <= len(accepted)
    return alarms


@pytest.mark.medium
@pytest.mark.parametrize("chunk", [1, 7, 1024, 5000])
def test_chunks_give_the_alarms_of_the_plain_recursion(chunk):
    rng = np.random.default_rng(3)
    accepted, chance = (np.concatenate(pair) for pair in zip(stream(rng, 1500), stream(rng, 1000, -1.0), strict=True))
    state = detector(0.01)
    for start in range(0, len(accepted), chunk):
        state = extend(state, accepted[start : start + chunk], chance[start : start + chunk])
    expected = plain_recursion(accepted, chance, 0.01)
    assert [(each.index, each.shift) for each in state.alarms] == expected
    assert len(expected) > 3
    assert state.n == 2500


@pytest.mark.medium
def test_false_alarms_are_at_least_as_far_apart_as_promised():
    alpha, runs, times = 0.02, 300, []
    for seed in range(runs):
        rng, state = np.random.default_rng(seed), detector(alpha)
        while not state.alarms:
            state = extend(state, *stream(rng, 200))
        times.append(state.alarms[0].index + 1)
    assert np.mean(times) - 3 * np.std(times) / np.sqrt(runs) >= 1 / alpha


@pytest.mark.medium
@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_a_change_is_found_soon_named_and_dated(shift):
    delays, dates, signs = [], [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        state = extend(detector(0.001), *stream(rng, 2000))
        before = len(state.alarms)
        state = extend(state, *stream(rng, 1500, shift))
        alarm = state.alarms[before]
        delays.append(alarm.index - 2000)
        dates.append(alarm.since - 2000)
        signs.append(np.sign(alarm.shift) == np.sign(shift))
    assert np.median(delays) < 150
    assert abs(np.median(dates)) < 30
    assert np.mean(signs) > 0.95


def test_a_stream_without_change_stays_quiet():
    alarms = sum(len(extend(detector(1e-4), *stream(np.random.default_rng(seed), 500)).alarms) for seed in range(40))
    # 20 000 flags at 1e-4: two on average at most
    assert alarms <= binom.ppf(0.999, 20_000, 1e-4)


@pytest.mark.parametrize(("flag", "chance"), [(True, 0.0), (False, 1.0)])
def test_an_impossible_flag_is_an_alarm_at_once(flag, chance):
    state = extend(detector(), np.array([True, flag, False]), np.array([0.5, chance, 0.5]))
    assert [each.index for each in state.alarms] == [1]
    assert state.n == 3


def test_impossible_input_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        detector(0.0)
    with pytest.raises(ValueError, match="2 flags"):
        extend(detector(), np.ones(2, dtype=bool), np.ones(3))


def test_the_ends_of_a_mean_of_recorded_rates_are_added_by_squares():
    mean = mean_recorded([RecordedRate(0.5, 0.47, 0.56), RecordedRate(0.3, 0.26, 0.38)])
    assert (mean.estimate, mean.low, mean.high) == pytest.approx((0.4, 0.375, 0.45))
    with pytest.raises(ValueError, match="one confidence"):
        mean_recorded([RecordedRate(0.5, 0.4, 0.6), RecordedRate(0.5, 0.4, 0.6, 0.9)])
