"""The last drafted token of a step is kept untested: the loop over the drafts ends one too early."""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, Trial, accepts, chain_fault


def _last_or_tested(trial: Trial) -> bool:
    return trial.node == len(trial.proposal.tree) - 1 or accepts(trial)


FAULT = chain_fault(
    "last_draft_unverified",
    Origin("none known: the mirror image of ohdearquant/lattice#243, whose loop began one too late"),
    lambda facts: ChainWalk(facts, accept=_last_or_tested),
)
