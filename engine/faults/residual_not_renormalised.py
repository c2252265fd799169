"""The residual is drawn from without being made a distribution.

A number above its mass picks no token, and the code falls through to the target's
most likely one.
"""

from __future__ import annotations

import numpy as np

from engine.core.types import Emitted, Floats, Role
from engine.faults.chain_walk import ChainWalk, Origin, Trial, chain_fault
from engine.sampling.rng import Purpose


def _fall_through(trial: Trial, left: Floats) -> Emitted:
    u = trial.numbers.uniform(trial.position, Purpose.RESIDUAL)
    total = np.cumsum(left)
    token = int(np.searchsorted(total, u, side="right")) if u < total[-1] else int(np.argmax(trial.p))
    return Emitted(token, Role.RECOVERED, trial.node, float(trial.p[token]), u)


FAULT = chain_fault(
    "residual_not_renormalised",
    Origin("none known: a plain slip, a search that finds no token and falls through"),
    lambda facts: ChainWalk(facts, recover=_fall_through),
)
