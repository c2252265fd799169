"""Acceptance over builds and over time.

`acceptance_drift` compares two builds on the same prompts, with the prompt as
the unit. `against_recorded` compares a new interval with one that was recorded
earlier and of which only the ends are known; it combines the ends by square-and-
add (MOVER: Zou and Donner 2008). `extend` watches a stream of accept flags with
known probabilities: an e-detector (Shin, Ramdas and Rinaldo 2023) that sums over
all starting times the likelihood ratios of shifted log odds, averages the
shifts, and raises an alarm at 1 / alpha. While the probabilities are correct, the
mean time to an alarm is at least 1 / alpha flags, from any past; after an alarm
it restarts. Exact, no asymptotics, under any dependence of the flags, as long as
each probability is correct given the past. Cost: O(shifts) per flag. Drift means
that draft or target changed, not that the output is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from audit.stats.binomial import Interval
from audit.stats.clusters import ClusterInterval, cluster_sums, jackknife_interval, left_out_ratios
from audit.stats.equivalence import EquivalenceDecision, decide
from engine.core.types import Floats

SHIFTS = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)
"""Alternatives: changes of the log odds of acceptance."""
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """[n] drafted and accepted tokens of one build's responses, and the prompt that each answers."""

    accepted: Floats
    drafted: Floats
    prompt: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordedRate:
    """A rate with its interval; `confidence` belongs to the interval."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.99


@dataclass(frozen=True, slots=True)
class RateChange:
    """New minus recorded rate, and the decision about a margin."""

    change: float
    interval: Interval
    decision: EquivalenceDecision


@dataclass(frozen=True, slots=True)
class Alarm:
    """`index` counts flags from 0; `since` is where the leading shift's evidence begins; `shift` is in log odds."""

    index: int
    since: int
    shift: float


@dataclass(frozen=True, slots=True)
class ShiftStatistics:
    """[K] per shift, since the last alarm.

    `log_sums` is the log of the sum over starting times of likelihood ratios, `walk` the log ratio since the restart,
    `lowest` its minimum, `since` the flag after that minimum.
    """

    log_sums: Floats
    walk: Floats
    lowest: Floats
    since: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Detector:
    """State between chunks of a stream; `peak` is the largest log evidence so far, alarms included."""

    alpha: float
    n: int
    evidence: ShiftStatistics
    peak: float
    alarms: tuple[Alarm, ...]


def acceptance_drift(own: AcceptanceCounts, reference: AcceptanceCounts, confidence: float = 0.99) -> ClusterInterval:
    """Rate of `own` minus that of `reference`, paired by prompt, by the jackknife.

    Raises:
        ValueError: the builds did not answer the same prompts, or drafted nothing.
    """
    if not np.array_equal(np.unique(own.prompt), np.unique(reference.prompt)):
        raise ValueError("the two builds did not answer the same prompts")
    ours, theirs = (
        cluster_sums(np.column_stack([build.accepted, build.drafted]), build.prompt) for build in (own, reference)
    )
    if min(ours[:, 1].sum(), theirs[:, 1].sum()) <= 0:
        raise ValueError("a build without drafted tokens has no rate")
    rates = [float(item[:, 0].sum() / item[:, 1].sum()) for item in (ours, theirs)]
    left_out = [left_out_ratios(item[:, 0], item[:, 1]) for item in (ours, theirs)]
    return jackknife_interval(rates[0] - rates[1], left_out[0] - left_out[1], len(own.drafted), confidence)


def against_recorded(now: RecordedRate, before: RecordedRate, margin: float) -> RateChange:
    """Decide whether a rate moved by more than `margin` since `before`; the two samples are independent.

    Raises:
        ValueError: intervals of different confidence, which cannot be combined.
    """
    if now.confidence != before.confidence:
        raise ValueError(f"an interval at {now.confidence} against one at {before.confidence}")
    change = now.estimate - before.estimate
    below = np.hypot(now.estimate - now.low, before.high - before.estimate)
    above = np.hypot(now.high - now.estimate, before.estimate - before.low)
    interval = Interval(change - float(below), change + float(above))
    return RateChange(change, interval, decide(interval.low, interval.high, margin))


def mean_recorded(rates: Sequence[RecordedRate]) -> RecordedRate:
    """The mean of independent recorded rates, each with the same weight; their ends combine by square-and-add.

    Raises:
        ValueError: intervals of different confidence, or none.
    """
    if len({rate.confidence for rate in rates}) != 1:
        raise ValueError("a mean needs intervals of one confidence")
    estimate = float(np.mean([rate.estimate for rate in rates]))
    below = np.linalg.norm([rate.estimate - rate.low for rate in rates]) / len(rates)
    above = np.linalg.norm([rate.high - rate.estimate for rate in rates]) / len(rates)
    return RecordedRate(estimate, estimate - float(below), estimate + float(above), rates[0].confidence)


def detector(alpha: float = 0.001) -> Detector:
    """A detector before any flag; false alarms are at least 1 / alpha flags apart on average."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha {alpha} is not in (0, 1)")
    return Detector(alpha, 0, _no_evidence(0), -np.inf, ())


def extend(state: Detector, accepted: NDArray[np.bool_], probability: Floats) -> Detector:
    """The state after flags [n] with null probabilities `probability` [n], each given the flags before it."""
    if len(accepted) != len(probability):
        raise ValueError(f"{len(accepted)} flags for {len(probability)} probabilities")
    steps, end = shift_ratios(accepted, probability), state.n + len(accepted)
    while state.n < end:
        left = len(steps) - (end - state.n)
        state = _advanced(state, steps[left : left + _BLOCK])
    return state


def shift_ratios(accepted: NDArray[np.bool_], probability: Floats) -> Floats:
    """[n, K] log likelihood ratio of each shift of the log odds; infinite for a flag of probability 0."""
    chance = np.clip(probability, 0.0, 1.0)[:, None]
    shifts = np.array(SHIFTS)
    ratios = shifts * accepted[:, None] - np.log1p(chance * np.expm1(shifts))
    ratios[(accepted & (probability <= 0.0)) | (~accepted & (probability >= 1.0))] = np.inf
    return np.asarray(ratios)


def _advanced(state: Detector, steps: Floats) -> Detector:
    """The state after `steps` [n, K], or after the first alarm in them."""
    old = state.evidence
    sums = np.cumsum(steps, axis=0)
    before = np.vstack([np.zeros((1, len(SHIFTS))), sums[:-1]])
    # one new start per flag: M_t = L_t (M_{t-1} + 1), in closed form
    starts = np.logaddexp.accumulate(np.vstack([old.log_sums, -before]), axis=0)[1:]
    log_sums = sums + starts
    average = np.logaddexp.reduce(log_sums, axis=1) - np.log(len(SHIFTS))
    crossed = np.flatnonzero(average >= -np.log(state.alpha))
    used = int(crossed[0]) + 1 if len(crossed) else len(steps)
    n, peak = state.n + used, max(state.peak, float(np.max(average[:used])))
    walk = old.walk + sums[:used]
    place, lowest = walk.argmin(axis=0), walk.min(axis=0)
    since = np.where(lowest <= old.lowest, state.n + place + 1, old.since)
    if not len(crossed):
        evidence = ShiftStatistics(log_sums[-1], walk[-1], np.minimum(lowest, old.lowest), since)
        return replace(state, n=n, evidence=evidence, peak=peak)
    leader = int(np.argmax(log_sums[used - 1]))
    alarm = Alarm(n - 1, min(int(since[leader]), n - 1), SHIFTS[leader])
    return replace(state, n=n, evidence=_no_evidence(n), peak=peak, alarms=(*state.alarms, alarm))


def _no_evidence(n: int) -> ShiftStatistics:
    zeros = np.zeros(len(SHIFTS))
    return ShiftStatistics(np.full(len(SHIFTS), -np.inf), zeros, zeros, np.full(len(SHIFTS), n, dtype=np.int64))
