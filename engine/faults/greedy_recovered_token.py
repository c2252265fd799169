"""A rejected token is replaced by the most likely token of the residual, not by a draw from it."""

from __future__ import annotations

import numpy as np

from engine.core.types import Emitted, Floats, Role
from engine.faults.chain_walk import ChainWalk, Origin, Trial, chain_fault
from engine.sampling.rng import Purpose


def _likeliest(trial: Trial, left: Floats) -> Emitted:
    token = int(np.argmax(left))
    u = trial.numbers.uniform(trial.position, Purpose.RESIDUAL)
    return Emitted(token, Role.RECOVERED, trial.node, float(trial.p[token]), u)


FAULT = chain_fault(
    "greedy_recovered_token",
    Origin("none known: a plain slip, a greedy path taken for a sampled request"),
    lambda facts: ChainWalk(facts, recover=_likeliest),
)
