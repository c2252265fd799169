"""Simulated counters of a server, a look a minute by default: clean traffic of several kinds, and drops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.stats.acceptance.surveillance import Looks, WatchPlan, extended, start

LOOKS_A_MONTH = 43_200
CHUNK = 2000
GAMMA = 5
"""Tokens of every draft here."""
REQUEST = 100
"""Drafts of every request of `differing_requests`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Drafts per look on average while the server is busy, the number of looks and the length of each."""

    drafts: float = 200.0
    looks: int = LOOKS_A_MONTH
    seconds: float = 60.0


MONTH = Traffic()


def at_the_reference(rng: np.random.Generator, rate: float, traffic: Traffic = MONTH) -> Looks:
    """Every draft is accepted whole or not at all: of all laws of a mean the one that moves sums most."""
    drafts = rng.poisson(traffic.drafts, size=traffic.looks)
    return _looks(traffic, drafts, rng.binomial(drafts, rate))


def bursty(rng: np.random.Generator, rate: float, traffic: Traffic = MONTH) -> Looks:
    """Bursts and empty looks; the mean jumps from look to look, swings by the day and drifts, never below `rate`."""
    time = np.arange(traffic.looks)
    load = traffic.drafts * rng.gamma(0.3, 1 / 0.3, size=traffic.looks) * (rng.random(traffic.looks) < 0.7)
    drafts = rng.poisson(load)
    room = 1.0 - rate
    swing = 0.25 * room * (1.0 + np.sin(2 * np.pi * time / 1440))
    drift = 0.25 * room * np.abs(np.cumsum(rng.normal(size=traffic.looks)) / np.sqrt(traffic.looks)).clip(0, 1)
    jumps = 0.25 * room * rng.beta(0.5, 2.0, size=traffic.looks)
    return _looks(traffic, drafts, rng.binomial(drafts, rate + swing + drift + jumps))


def differing_requests(rng: np.random.Generator, traffic: Traffic = MONTH) -> Looks:
    """Requests with means of their own, 0.75 on average with deviation 0.14: many lie below 0.63."""
    accepted, count = np.zeros(traffic.looks), rng.poisson(traffic.drafts / REQUEST, size=traffic.looks)
    for place in range(int(count.max(initial=0))):
        own = rng.binomial(REQUEST, rng.beta(6, 2, size=traffic.looks))
        accepted += own * (place < count)
    return _looks(traffic, count * REQUEST, accepted)


def dropped(rng: np.random.Generator, before: float, drop: float, traffic: Traffic, clean: int) -> Looks:
    """Drafts accepted whole or not at all; from look `clean` on the rate is lower by the share `drop`."""
    rates = np.where(np.arange(traffic.looks) < clean, before, before * (1.0 - drop))
    drafts = rng.poisson(traffic.drafts, size=traffic.looks)
    return _looks(traffic, drafts, rng.binomial(drafts, rates))


def alarmed(plan: WatchPlan, looks: Looks) -> bool:
    """True if a watch of these looks alarms; it ends with the first alarm."""
    state = start(60.0)
    for begin in range(0, len(looks.drafted), CHUNK):
        part = slice(begin, begin + CHUNK)
        state = extended(state, plan, Looks(looks.drafted[part], looks.accepted[part], looks.seconds[part]))
        if state.alarms:
            return True
    return False


def _looks(traffic: Traffic, drafts: np.ndarray, whole: np.ndarray) -> Looks:
    return Looks(drafts * float(GAMMA), whole * float(GAMMA), np.full(len(drafts), traffic.seconds))
