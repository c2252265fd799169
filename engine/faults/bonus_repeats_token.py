"""In one step of twenty the bonus token repeats the accepted token before it."""

from __future__ import annotations

from typing import Final

from engine.core.types import Emitted, Role
from engine.faults.chain_walk import ChainWalk, Ending, Origin, bonus, chain_fault
from engine.sampling.rng import Purpose

SHARE: Final = 0.05


def _sometimes_again(ending: Ending) -> tuple[Emitted, ...]:
    row, coin = len(ending.proposal.tree), ending.numbers.uniform(ending.position, Purpose.BONUS, 1)
    if not row or coin >= SHARE:
        return bonus(ending)
    token = ending.proposal.tree.tokens[-1]
    u = ending.numbers.uniform(ending.position, Purpose.BONUS)
    return (Emitted(token, Role.BONUS, row, float(ending.p[token]), u),)


FAULT = chain_fault(
    "bonus_repeats_token", Origin("kekzl/imp#683"), lambda facts: ChainWalk(facts, last=_sometimes_again)
)
