"""Requests whose accepted drafts are improbably few or many beside those of their fellow requests.

A step of d drafted tokens keeps some of them by the conditional rates of the sample, position by position. Requests
differ in difficulty, so the log odds of each get an effect. Its spread is read between the first and the last decile of
the requests, which a few odd ones do not reach; how far the effect's tails reach is an assumption, because no sample
shows its own tails. Two laws are used. Under `EXPONENTIAL` the tails fall as slowly as those of any effect with a
log-concave density and these deciles (normal, uniform, exponential); under `NORMAL` they fall as fast as the normal
law's. p is the chance of so few or so many accepted tokens, and Holm's correction over the requests bounds the chance
that any ordinary one is named, whatever the dependence between them.

Cannot see: what most requests have in common. Cost: one Fourier transform per request and effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

import numpy as np
import scipy

from audit.stats.multiplicity import holm
from engine.core.types import Floats

Plan = Sequence[tuple[int, int]]
"""Drafted and accepted tokens of each step with a draft of one request."""
DECILES: Final = 2.563
"""Distance between the first and the last decile of the standard normal law."""
WIDENED: Final = 0.5
"""Over the square root of the number of requests: widens the spread for the error of the deciles. Measured, so that
exponential effects keep the level from 30 requests on."""
GRID: Final = np.linspace(-24.0, 24.0, 121)
"""Effects, in spreads."""
WIDEST: Final = 10.0
"""Largest spread of the log odds that is searched."""
LARGEST: Final = 20.0
"""Largest loss of log odds that is searched."""
FAR: Final = 1e9
"""Tokens that a request lacks which is behind all others."""
POWER: Final = 0.9


def _weights(density: Floats) -> Floats:
    return np.asarray(density / density.sum())


EXPONENTIAL: Final = _weights(np.exp(-np.abs(GRID) * log(9.0) / DECILES))
"""Weights of `GRID`. A log-concave density has an increasing hazard, whose mean between the deciles is log 9 over their
distance: its tails fall at least as fast as an exponential law with that hazard."""
NORMAL: Final = _weights(np.exp(-(GRID**2) / 2.0))


@dataclass(frozen=True, slots=True)
class AcceptanceChance:
    """One request: accepted and drafted tokens, the sample's expectation of the former, and its chances by Holm.

    adjusted: with exponential tails of the effect. suspected: with normal tails.
    """

    accepted: int
    drafted: int
    expected: float
    adjusted: float
    suspected: float


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """A sample's rates by position [depth], the spread of the log odds, and every request's law in the given order.

    beside: the spread if one more request had lost everything.
    """

    rates: Floats
    spread: float
    beside: float
    laws: tuple[AcceptanceLaw, ...]
    accepted: tuple[int, ...]

    def chances(self, weights: Floats) -> list[float]:
        """[n] two-sided chances of so few or so many accepted tokens with the weights of the effects."""
        result = []
        for law, count in zip(self.laws, self.accepted, strict=True):
            mixed = law.mixed(self.spread, weights)
            tail = min(float(mixed[: count + 1].sum()), float(mixed[count:].sum()))
            result.append(min(1.0, 2.0 * tail))
        return result

    def detectable(self, level: float) -> float | None:
        """The loss, as a share of its accepted tokens, at which the middle request is named with probability 0.9.

        `level` is the chance that names a request on either side. None if not even the loss of everything does.
        """
        law = sorted(self.laws, key=lambda item: item.variance)[len(self.laws) // 2]
        named = int(np.sum(np.cumsum(law.mixed(self.beside, EXPONENTIAL)) <= level / 2.0))

        def missed(loss: float) -> float:
            return POWER - float(law.given(np.array([-loss]))[0, :named].sum())

        if named == 0 or missed(LARGEST) > 0.0:
            return None
        loss = float(scipy.optimize.brentq(missed, 0.0, LARGEST, xtol=1e-4)) if missed(0.0) > 0.0 else 0.0
        return 1.0 - law.mean(-loss) / law.mean(0.0)


@dataclass(frozen=True, slots=True)
class AcceptanceLaw:
    """The law of a request's accepted tokens, from how many of its steps drafted how many tokens."""

    kinds: Mapping[int, int]
    rates: Floats

    @property
    def drafted(self) -> int:
        """Drafted tokens."""
        return sum(drafted * many for drafted, many in self.kinds.items())

    @property
    def variance(self) -> float:
        """Of the accepted tokens, without an effect."""
        law, counts = self.given(np.zeros(1))[0], np.arange(self.drafted + 1)
        return float(law @ counts**2.0) - float(law @ counts) ** 2

    def mean(self, effect: float) -> float:
        """Expected accepted tokens at an effect."""
        return float(self.given(np.array([effect]))[0] @ np.arange(self.drafted + 1))

    def given(self, effects: Floats) -> Floats:
        """[effects, tokens + 1] probabilities."""
        chance = scipy.special.expit(scipy.special.logit(self.rates)[None, :] + effects[:, None])
        size = self.drafted + 1
        transformed = np.ones((len(effects), size // 2 + 1), dtype=np.complex128)
        for drafted, many in self.kinds.items():
            reach = np.cumprod(np.hstack([np.ones((len(effects), 1)), chance[:, :drafted]]), axis=1)
            step = np.zeros((len(effects), size))
            step[:, :drafted] = reach[:, :drafted] * (1.0 - chance[:, :drafted])
            step[:, drafted] = reach[:, drafted]
            transformed *= np.fft.rfft(step, axis=1) ** many
        return np.clip(np.fft.irfft(transformed, size, axis=1), 0.0, 1.0)

    def mixed(self, spread: float, weights: Floats) -> Floats:
        """[tokens + 1] probabilities with an effect of that spread, by the weights of `GRID`."""
        return np.asarray(weights @ self.given(spread * GRID) if spread > 0 else self.given(np.zeros(1))[0])


def fit(plans: Sequence[Plan]) -> AcceptanceFit:
    """Rates and spread of a sample [n] of requests, each with a drafted token.

    Raises:
        ValueError: a request without a draft, or no request.
    """
    if not plans or not all(sum(drafted for drafted, _ in plan) for plan in plans):
        raise ValueError("every request needs a drafted token")
    rates = conditional_rates(plans)
    laws = tuple(AcceptanceLaw(Counter(drafted for drafted, _ in plan), rates) for plan in plans)
    accepted = tuple(sum(kept for _, kept in plan) for plan in plans)
    left = np.array([count - law.mean(0.0) for law, count in zip(laws, accepted, strict=True)])
    slopes = np.array([(law.mean(0.1) - law.mean(-0.1)) / 0.2 for law in laws])
    variances = np.array([law.variance for law in laws])
    spread = _spread(left, variances, slopes)
    beside = _spread(np.append(left, -FAR), np.append(variances, 1.0), np.append(slopes, 0.0))
    return AcceptanceFit(rates, spread, beside, laws, accepted)


def judged(samples: Sequence[AcceptanceFit]) -> tuple[AcceptanceChance, ...]:
    """Every request of all samples, in their order; Holm's correction is over all of them."""
    sure = holm([p for sample in samples for p in sample.chances(EXPONENTIAL)])
    suspected = holm([p for sample in samples for p in sample.chances(NORMAL)])
    requests = [pair for sample in samples for pair in zip(sample.laws, sample.accepted, strict=True)]
    return tuple(
        AcceptanceChance(count, law.drafted, law.mean(0.0), float(sure[i]), float(suspected[i]))
        for i, (law, count) in enumerate(requests)
    )


def conditional_rates(plans: Sequence[Plan]) -> Floats:
    """[depth] share of the steps that reached a position and kept it; half a step is added either way."""
    steps = np.array([step for plan in plans for step in plan])
    drafted, kept = steps[:, 0], steps[:, 1]
    places = range(int(drafted.max()))
    held = np.array([np.sum(kept > at) for at in places])
    reached = np.array([np.sum((kept >= at) & (drafted > at)) for at in places])
    return np.asarray((held + 0.5) / (reached + 1.0))


def _spread(left: Floats, variances: Floats, slopes: Floats) -> float:
    """Deviation of the effects: the one at which the requests between their deciles are as wide as they should be."""
    goal = DECILES / (1.0 + WIDENED / sqrt(len(left)))

    def width(spread: float) -> float:
        scaled = left / np.sqrt(variances + (spread * slopes) ** 2)
        low, high = np.quantile(scaled, [0.1, 0.9])
        return float(high - low) - goal

    if width(0.0) <= 0.0:
        return 0.0
    return float(scipy.optimize.brentq(width, 0.0, WIDEST)) if width(WIDEST) < 0.0 else WIDEST
