"""Watch the acceptance of a stream of drafts of which only sums are known, without an end and without independence.

A server's counters give, for each look, the drafted tokens D and the accepted tokens A of the drafts since the look
before. For one draft let d <= u be its drafted tokens and a <= d its accepted ones, with u known beforehand. The null
hypothesis of a fall is

    E[a | past] >= r E[d | past]    for every draft,

for a reference rate r. For a bet l > 0 put c = log(1 - r + r exp(-l)) < 0. The pair (d, a) / u lies in the triangle
with the corners (0, 0), (1, 0), (1, 1), on which exp(-l a / u - c d / u) is convex, so its mean is at most that over
the corners with the same means. With w = E[a] / u at the last corner and v + w = E[d] / u at the last two,

    E[exp(-l a / u - c d / u) | past] <= 1 - v - w + exp(-c) (v + w exp(-l)) <= 1,

because w >= r (v + w) makes v + w exp(-l) <= (v + w) exp(c). The product over the drafts of a look needs only A and D:
exp(-l A / u - c D / u). For drafts of one length u it is the likelihood ratio of A / u accepted among D / u Bernoulli
drafts, against the rate r exp(-l - c). A rise, E[a] <= r E[d], is the same with -l. Each look's ratio is a mixture over
`SHARES` of the reference.

A stream has no planned end, so the evidence is a Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2023):
M_t = (M_{t-1} + w_t) L_t, where the weight w_t of a start at look t is the length of the look before, as a share of a
month, which is known before the look begins. M minus the sum of the weights is a supermartingale. Hence an alarm at
M >= 1 / alpha has probability at most alpha in the first month, and as M restarts at 0 after an alarm, at most alpha T
false alarms are expected in the first T months. Both are exact, for any times of looks that do not depend on what is
counted. Which month has them is not bounded: M keeps what earlier months left, so a later one may have more than alpha.

What the null does not cover. The mean must hold given the past, draft by draft. If requests differ (prose accepts
less than code), acceptance below the reference during one request is a fall while it lasts. With u as the most
drafted tokens of one request (`unit`), the same proof holds for requests as pieces, if the counted pieces are whole:
E[a | past requests] >= r E[d | past requests]. It costs evidence in proportion to u. A shift of the traffic to requests
of low acceptance is a fall all the same: an alarm says that acceptance fell, not why. A u below the longest piece
breaks the proof; a larger one costs evidence only.

Cost: O(shares) per look.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from engine.core.types import Floats

SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Alternatives: the reference lowered by these shares of itself, or what it lacks of 1 lowered by them."""
MONTH_S = 30 * 86400.0
_BLOCK = 256


class ChangeDirection(StrEnum):
    """The change that a detector looks for."""

    FALL = "fall"
    RISE = "rise"


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """Settings of a test.

    Attributes:
        direction: a fall below the reference or a rise above it.
        reference: accepted per drafted token, in (0, 1).
        unit: drafted tokens of the longest piece whose expected acceptance holds the reference: a draft or a request.
        alpha: expected false alarms per 30 days, below 1.

    Raises:
        ValueError: a value is out of range.
    """

    direction: ChangeDirection
    reference: float
    unit: float
    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.reference < 1.0:
            raise ValueError(f"the reference {self.reference} is not in (0, 1)")
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha {self.alpha} is not in (0, 1)")
        if not 1.0 <= self.unit < math.inf:
            raise ValueError(f"a unit of {self.unit} drafted tokens")


@dataclass(frozen=True, slots=True)
class Looks:
    """[T] each: drafted and accepted tokens of each look, and its length in seconds."""

    drafted: Floats
    accepted: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class WatchAlarm:
    """`look` counts from 0; the leading alternative's evidence begins at `since`; `rate` is that alternative."""

    look: int
    since: int
    rate: float


@dataclass(frozen=True, slots=True)
class WatchState:
    """A detector between looks.

    Attributes:
        n: looks so far.
        weight: share of a month that the next look's start gets.
        log_sums: [K] log M of each alternative.
        walk: [K] log ratio since the last alarm.
        lowest: [K] its minimum.
        since: [K] the look after that minimum.
        alarms: every alarm so far.
    """

    n: int
    weight: float
    log_sums: Floats
    walk: Floats
    lowest: Floats
    since: Floats
    alarms: tuple[WatchAlarm, ...] = ()

    @property
    def log_evidence(self) -> float:
        """Log of M, averaged over the alternatives."""
        return float(np.logaddexp.reduce(self.log_sums)) - math.log(len(self.log_sums))


def start(first_s: float) -> WatchState:
    """A detector before any look; its first start weighs as a look of `first_s` seconds."""
    return _restarted(0, first_s / MONTH_S, ())


def extended(state: WatchState, plan: WatchPlan, looks: Looks) -> WatchState:
    """The state after more looks.

    Raises:
        ValueError: accepted tokens outside 0 to drafted, or a look without a length.
    """
    if np.any(looks.accepted < 0) or np.any(looks.accepted > looks.drafted) or np.any(looks.seconds <= 0):
        raise ValueError("a look needs a length, and accepted tokens from 0 to the drafted ones")
    ratios, end = log_ratios(plan, looks.drafted, looks.accepted), state.n + len(looks.drafted)
    while state.n < end:
        done = len(ratios) - (end - state.n)
        part = slice(done, done + _BLOCK)
        state = _advanced(state, plan, ratios[part], looks.seconds[part])
    return state


def alternatives(plan: WatchPlan) -> Floats:
    """[K] the rates that the plan's detector bets on."""
    r, shares = plan.reference, np.array(SHARES)
    return r * (1.0 - shares) if plan.direction is ChangeDirection.FALL else 1.0 - (1.0 - r) * (1.0 - shares)


def log_ratios(plan: WatchPlan, drafted: Floats, accepted: Floats) -> Floats:
    """[T, K] the log of each look's factor, for each alternative."""
    r, other = plan.reference, alternatives(plan)
    hit, miss = np.log(other / r), np.log((1.0 - other) / (1.0 - r))
    return np.asarray((np.outer(accepted, hit) + np.outer(drafted - accepted, miss)) / plan.unit)


def _advanced(state: WatchState, plan: WatchPlan, ratios: Floats, seconds: Floats) -> WatchState:
    """The state after looks, or after the first alarm in them."""
    sums = np.cumsum(ratios, axis=0)
    before = np.vstack([np.zeros((1, sums.shape[1])), sums[:-1]])
    weights = np.log(np.append(state.weight, seconds[:-1] / MONTH_S))[:, None]
    # M_t = (M_{t-1} + w_t) L_t in closed form
    starts = np.logaddexp.accumulate(np.vstack([state.log_sums, weights - before]), axis=0)[1:]
    log_sums = sums + starts
    average = np.logaddexp.reduce(log_sums, axis=1) - math.log(sums.shape[1])
    crossed = np.flatnonzero(average >= -math.log(plan.alpha))
    used = int(crossed[0]) + 1 if len(crossed) else len(ratios)
    n, weight = state.n + used, float(seconds[used - 1]) / MONTH_S
    walk = state.walk + sums[:used]
    lowest, place = walk.min(axis=0), walk.argmin(axis=0)
    since = np.where(lowest <= state.lowest, state.n + place + 1, state.since)
    if not len(crossed):
        lowest = np.minimum(lowest, state.lowest)
        return replace(state, n=n, weight=weight, log_sums=log_sums[-1], walk=walk[-1], lowest=lowest, since=since)
    leader = int(np.argmax(log_sums[used - 1]))
    alarm = WatchAlarm(n - 1, min(int(since[leader]), n - 1), float(alternatives(plan)[leader]))
    return _restarted(n, weight, (*state.alarms, alarm))


def _restarted(n: int, weight: float, alarms: tuple[WatchAlarm, ...]) -> WatchState:
    zeros = np.zeros(len(SHARES))
    return WatchState(n, weight, np.full(len(SHARES), -np.inf), zeros, zeros, np.full(len(SHARES), float(n)), alarms)
