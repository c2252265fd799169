"""Scores of the same samples without speculation and with it: the mean difference and its interval.

The interval is a betting interval of the mean of paired differences (Waudby-Smith and Ramdas 2024, as in
`audit.stats.bounded_mean`), exact at any number of samples and for any distribution on [-1, 1]. Repetitions of a sample
are averaged first, so samples are what is independent. All intervals hold together with the stated confidence: each one
gets its share of the error (Bonferroni). Only scores within [0, 1] have one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from audit.stats.binomial import Interval
from audit.stats.bounded_mean import betting_interval
from engine.core.types import Floats

CONFIDENCE: Final = 0.99


class EvaluationPass(StrEnum):
    """One evaluation of those that are compared; its name is that of its folder of results."""

    OFF = "off"
    CONTROL = "control"
    """As `off`, with other seeds."""
    ON = "on"

    @property
    def speculation(self) -> str:
        """The models' option `speculation`."""
        return "on" if self is EvaluationPass.ON else "off"

    def seed(self, seed: int) -> int:
        """The evaluation's seed, from the user's."""
        return seed + 1 if self is EvaluationPass.CONTROL else seed


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One sample of an evaluation, or one repetition of it: its scores by metric, and the records of its requests."""

    task: str
    sample: str
    scores: Mapping[str, float]
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluatedArm:
    """The run of an evaluation, and the arm of its generated answers."""

    run: str
    arm: str


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One evaluation: the run of its answers, and its samples."""

    arm: EvaluatedArm
    samples: tuple[ScoredSample, ...]


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """A metric of a task; `difference` is on minus off, `interval` None for scores that do not lie in [0, 1]."""

    task: str
    metric: str
    samples: int
    off: float
    on: float
    difference: float
    interval: Interval | None

    @property
    def differs(self) -> bool:
        """True if the interval excludes 0."""
        return self.interval is not None and not self.interval.low <= 0.0 <= self.interval.high


def score_differences(
    off: Sequence[ScoredSample], on: Sequence[ScoredSample], confidence: float = CONFIDENCE
) -> tuple[ScoreDifference, ...]:
    """The difference of every metric, over the samples that both evaluations scored."""
    before, after = _means(off), _means(on)
    metrics = [metric for metric in before if metric in after]
    error = (1.0 - confidence) / max(1, len(metrics))
    return tuple(_difference(metric, before[metric], after[metric], 1.0 - error) for metric in metrics)


@dataclass(frozen=True, slots=True, order=True)
class _Metric:
    task: str
    name: str


def _means(samples: Sequence[ScoredSample]) -> dict[_Metric, dict[str, float]]:
    """The mean of every sample's repetitions, by metric and sample."""
    mapping: dict[_Metric, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for name, score in sample.scores.items():
            mapping[_Metric(sample.task, name)][sample.sample].append(score)
    return {
        metric: {sample: float(np.mean(scores)) for sample, scores in mapping[metric].items()}
        for metric in sorted(mapping)
    }


def _difference(
    metric: _Metric, off: Mapping[str, float], on: Mapping[str, float], confidence: float
) -> ScoreDifference:
    samples = [sample for sample in off if sample in on]
    before, after = (np.array([scores[sample] for sample in samples]) for scores in (off, on))
    moved = after - before
    interval = _interval(moved, confidence) if _bounded(before) and _bounded(after) else None
    return ScoreDifference(metric.task, metric.name, len(samples), _mean(before), _mean(after), _mean(moved), interval)


def _mean(scores: Floats) -> float:
    return float(scores.mean()) if len(scores) else 0.0


def _bounded(scores: Floats) -> bool:
    return len(scores) == 0 or (float(scores.min()) >= 0.0 and float(scores.max()) <= 1.0)


def _interval(moved: Floats, confidence: float) -> Interval:
    unit = betting_interval((1.0 + moved) / 2.0, confidence)
    return Interval(2.0 * unit.low - 1.0, 2.0 * unit.high - 1.0)


def unseen_changes(off: Sequence[ScoredSample], on: Sequence[ScoredSample], changed: Sequence[str]) -> int:
    """How many samples have an answer among `changed` and the same scores in both evaluations."""
    before, names = _means(off), {name.partition("#")[0] for name in changed}
    touched = {(item.task, item.sample) for item in on if names.intersection(item.requests)}
    moved = {
        (metric.task, sample)
        for metric, scores in _means(on).items()
        for sample, score in scores.items()
        if before.get(metric, {}).get(sample) != score
    }
    return len(touched - moved)
