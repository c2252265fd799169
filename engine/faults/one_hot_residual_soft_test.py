"""The test is that of a drawn draft, the residual that of a deterministic one.

A rejected token is only taken out of p, and the rest of q is not subtracted.
"""

from __future__ import annotations

from engine.core.types import Floats
from engine.faults.chain_walk import ChainWalk, Origin, Trial, chain_fault


def _without_the_token(trial: Trial) -> Floats:
    left = trial.p.copy()
    left[trial.token] = 0.0
    return left


FAULT = chain_fault(
    "one_hot_residual_soft_test",
    Origin("none known: the two kinds of draft mixed up; engines with both have a branch for each"),
    lambda facts: ChainWalk(facts, left=_without_the_token),
)
