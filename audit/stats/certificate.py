"""Bounds of the distance between the emitted and the reference law, and the limits of such claims.

A certificate needs the random numbers. Given a context, the token that replay computes follows the recorded p, so the
law of the emitted token differs from it by at most the probability of a mismatch (coupling); the distance from the
recorded p to the reference is measured on anchored positions; the triangle inequality adds the two, each bounded with a
share of the error probability (Clopper-Pearson for mismatches, betting for distances). Sampling unit: one position per
response, so that trials are independent.

Without random numbers no upper bound of the distance follows from any amount of output; `Observation` holds the weaker
claims that do. Assumes independent random numbers, complete records, and responses drawn independently from the
workload. Cost: that of the bounds. The page on statistics has the derivation and the limits.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from audit.stats.binomial import Interval, upper_bound
from audit.stats.bounded_mean import betting_upper, drifting_mean
from audit.stats.distance import WitnessEstimate
from engine.core.types import Floats

REPLAY_SHARE = 0.5
"""Share of the error probability for the mismatches; the distances get the rest."""
_SLACK = 1e-12


class Unit(StrEnum):
    """The independent sampling unit, and the meaning of `eps`."""

    POSITION = "position"
    """One position per response, drawn uniformly: mean total variation per token."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """With `confidence`, the distance is at most `eps` = min(1, eps_replay + eps_numeric), in the sense of `unit`."""

    unit: Unit
    eps_replay: float
    eps_numeric: float
    eps: float
    confidence: float
    n_decisions: int
    """Audited positions."""
    violations: int
    """Units that replay did not reproduce or could not decide."""
    anchored_mean: float
    """Mean distance of the anchored units from the reference."""
    floor: float | None
    """The same mean for the engine without speculation against itself; None if not measured."""

    def distinguishable(self, length: int) -> float:
        """Bound on the share of responses of `length` tokens that any observer could distinguish; 1 is no bound."""
        return min(1.0, self.eps * length)


@dataclass(frozen=True, slots=True)
class Direction:
    """Mean of E_r s - E_p s over these contexts, r the emitted law, in [low, high]; one direction, not a distance."""

    score: str
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Observation:
    """Claims from tokens alone, jointly at `confidence`.

    They contain no upper bound of the distance: an engine with one fixed random number per prefix passes every test of
    its tokens, at distance 1 - p(token).
    """

    level: int
    """0 text, 1 log-probabilities of emitted tokens, 2 rows of p, 3 rows of p and q."""
    n: int
    confidence: float
    distance_low: float
    """Lower bound of the mean total variation per token; 0 is no bound."""
    directions: tuple[Direction, ...]


@dataclass(frozen=True, slots=True)
class PredictableScore:
    """A predictable score: `observed` [n], `mean` [n] under p, both in [low, high]. It needs evidence `level`."""

    name: str
    level: int
    observed: Floats
    mean: Floats
    low: float
    high: float


def certify(
    violations: int,
    decisions: int,
    anchored: Floats,
    confidence: float = 0.99,
    replay_share: float = REPLAY_SHARE,
    floor: float | None = None,
) -> Certificate:
    """Certificate from one position per response.

    Args:
        violations: number of the `decisions` audited positions that did not replay; ambiguous ones count.
        decisions: number of audited positions.
        anchored: [n] upper ends of the total variation between the recorded p and the reference row.
        confidence: of the sum.
        replay_share: of the error probability, in (0, 1), fixed beforehand.
        floor: mean distance of the engine from itself without speculation.
    """
    split = _Split(confidence, replay_share)
    eps_replay = upper_bound(violations, decisions, split.replay)
    eps_numeric = betting_upper(anchored, split.numeric)
    return Certificate(
        unit=Unit.POSITION,
        eps_replay=eps_replay,
        eps_numeric=eps_numeric,
        eps=min(1.0, eps_replay + eps_numeric),
        confidence=confidence,
        n_decisions=decisions,
        violations=violations,
        anchored_mean=float(np.mean(anchored)) if len(anchored) else float("nan"),
        floor=floor,
    )


def observe(
    level: int, confidence: float, scores: tuple[PredictableScore, ...], estimate: WitnessEstimate | None = None
) -> Observation:
    """The weaker claims. All `scores` share one error probability; the `found` witness has its own.

    Raises ValueError on scores that need more than `level`, and on a witness without rows of p.
    """
    too_deep = [score.name for score in scores if score.level > level]
    if too_deep or (estimate is not None and level < 2):
        raise ValueError(f"level {level} does not show {too_deep[0] if too_deep else 'a witness: it has no rows of p'}")
    spent = 0.0 if estimate is None else 1.0 - estimate.confidence
    left = 1.0 - confidence - spent
    if left < (_SLACK if scores else -_SLACK):
        raise ValueError(f"the witness at {1.0 - spent} leaves no error probability at confidence {confidence}")
    directions = tuple(_direction(score, 1.0 - left / len(scores)) for score in scores)
    n = max([0 if estimate is None else estimate.n, *(direction.n for direction in directions)])
    return Observation(level, n, confidence, 0.0 if estimate is None else estimate.low, directions)


@dataclass(frozen=True, slots=True)
class _Split:
    confidence: float
    replay_share: float

    def __post_init__(self) -> None:
        if not (0 < self.confidence < 1 and 0 < self.replay_share < 1):
            raise ValueError(f"confidence {self.confidence} and share {self.replay_share} must lie in (0, 1)")

    @property
    def replay(self) -> float:
        return 1.0 - (1.0 - self.confidence) * self.replay_share

    @property
    def numeric(self) -> float:
        return 1.0 - (1.0 - self.confidence) * (1.0 - self.replay_share)


def _direction(score: PredictableScore, confidence: float) -> Direction:
    width = score.high - score.low
    bound: Interval = drifting_mean(score.observed - score.mean, -width, width, confidence)
    return Direction(score.name, len(score.observed), bound.low, bound.high)
