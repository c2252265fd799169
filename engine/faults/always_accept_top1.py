"""A drafted token is kept without a test if it is the target's most likely one."""

from __future__ import annotations

import numpy as np

from engine.faults.chain_walk import ChainWalk, Origin, Trial, accepts, chain_fault


def _top_or_tested(trial: Trial) -> bool:
    return trial.token == int(np.argmax(trial.p)) or accepts(trial)


FAULT = chain_fault(
    "always_accept_top1",
    Origin("none known: a short cut that looks safe, because the target would choose the token at temperature 0"),
    lambda facts: ChainWalk(facts, accept=_top_or_tested),
)
