"""Tokens of a Markov chain against its exactly known law, without a reference run.

Two tests, Holm-adjusted: a score test towards the draft's law and a chi-square test of all transitions. A sound engine
fails with probability `ALPHA`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from audit.selftest.chains import FIRST
from audit.stats.anytime.scores import LeakEstimate, leak_estimate, leak_scores, moments, picked, score_test
from audit.stats.laws import chi2_sf
from audit.stats.multiplicity import holm
from audit.stats.power import detectable_shift
from engine.core.types import Floats

ALPHA: Final = 1e-3
LEAST: Final = 5
"""Cells that expect fewer tokens are joined."""


@dataclass(frozen=True, slots=True)
class Walk:
    """[E] each token and the one before it."""

    before: NDArray[np.int64]
    token: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChainJudgement:
    """The smaller of both adjusted p-values, the estimated share of the draft's law, and the number of tokens."""

    p: float
    leak: LeakEstimate
    tokens: int

    @property
    def departs(self) -> bool:
        """True if the tokens are not the chain's."""
        return self.p < ALPHA

    def needed(self, share: float) -> int:
        """The tokens that show such a leak with probability 0.9."""
        distance = detectable_shift(ALPHA / 4)
        return round(self.tokens * (distance * self.leak.error / share) ** 2)


def judge_walk(seen: Walk, p: Floats, q: Floats) -> ChainJudgement:
    """The judgement under the laws p and q after each token, [V, V]."""
    own, towards = p[seen.before], q[seen.before]
    scores = leak_scores(own, towards)
    expected, observed = moments(scores, own), picked(scores, seen.token)
    score = score_test(observed, expected, 1.0)
    leak = leak_estimate(observed, expected, np.sum(towards * scores, axis=1))
    return ChainJudgement(min(holm([score.p, transitions(seen, p)])), leak, len(seen.token))


def transitions(seen: Walk, p: Floats) -> float:
    """The p-value of a chi-square test given the tokens before; 0 if a token has probability 0."""
    counts = np.zeros_like(p)
    np.add.at(counts, (seen.before, seen.token), 1)
    if counts[p == 0].any():
        return 0.0
    statistic, freedom = 0.0, 0
    for row, made in zip(p[FIRST:], counts[FIRST:], strict=True):
        cells = _joined(made, row * made.sum())
        statistic += float(np.sum((cells.made - cells.due) ** 2 / cells.due))
        freedom += max(len(cells.due) - 1, 0)
    return float(chi2_sf(statistic, freedom))


@dataclass(frozen=True, slots=True)
class _Cells:
    made: Any
    due: Any


def _joined(made: Floats, due: Floats) -> _Cells:
    wide = due >= LEAST
    both = np.array([[*values[wide], values[~wide].sum()] for values in (made, due)])
    both = both[:, both[1] > 0]
    return _Cells(both[0], both[1])
