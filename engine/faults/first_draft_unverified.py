"""The first drafted token of a step is kept untested: the verification begins one position too late."""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, accepts, chain_fault

FAULT = chain_fault(
    "first_draft_unverified",
    Origin("ohdearquant/lattice#243"),
    lambda facts: ChainWalk(facts, accept=lambda trial: trial.node == 0 or accepts(trial)),
)
