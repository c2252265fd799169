"""A draft is cut before a token after which the draft is unsure: the confidence depends on the token that it cuts."""

from __future__ import annotations

from typing import Final

from engine.core.types import Proposal
from engine.faults.broken_proposer import proposer_fault, shortened
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario

LEAST: Final = 0.25


def followed_surely(proposal: Proposal, least: float = LEAST) -> Proposal:
    """The tokens before the first one after which the largest q is below `least`; the last one is never asked."""
    if proposal.q is None:
        return proposal
    after = proposal.q[1:].max(axis=1)
    unsure = (node for node, largest in enumerate(after) if largest < least)
    return shortened(proposal, next(unsure, len(proposal.tree)))


FAULT = proposer_fault(
    "trimmed_by_next_confidence",
    Origin("none known: vllm-project/vllm warns of it in the source of its acceptance estimator, by reading"),
    offer=followed_surely,
    # a draft that declares early stops, so that a short one is no contradiction in itself
    scenario=Scenario(options={"stop_below": 0.05}),
)
