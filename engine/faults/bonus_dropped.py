"""After full acceptance no bonus token is emitted.

A control: the emitted law is untouched, the step only yields a token less than it paid for.
"""

from __future__ import annotations

from engine.core.types import Emitted
from engine.faults.chain_walk import ChainWalk, Ending, Origin, bonus, chain_fault


def _none_after_drafts(ending: Ending) -> tuple[Emitted, ...]:
    return () if len(ending.proposal.tree) else bonus(ending)


FAULT = chain_fault(
    "bonus_dropped",
    Origin("ohdearquant/lattice#509", "engine evidence", "cost"),
    lambda facts: ChainWalk(facts, last=_none_after_drafts),
)
