"""A draft is cut before the first token that the draft itself thought unlikely.

The tokens cut never reach the record. Why the law breaks: `engine.proposers.draft_model.confidence`.
"""

from __future__ import annotations

from typing import Final

from engine.core.types import Proposal
from engine.faults.broken_proposer import proposer_fault, shortened
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario
from engine.verify.matching import q_of

LEAST: Final = 0.2


def sure_ones(proposal: Proposal, least: float = LEAST) -> Proposal:
    """The tokens before the first one whose q is below `least`."""
    unlikely = (node for node in range(len(proposal.tree)) if q_of(proposal, node) < least)
    return shortened(proposal, next(unlikely, len(proposal.tree)))


FAULT = proposer_fault(
    "trimmed_by_own_probability",
    Origin("none known: ggml-org/llama.cpp#22506 drops such tokens, where drafts are not drawn"),
    offer=sure_ones,
    # a draft that declares early stops, so that a short one is no contradiction in itself
    scenario=Scenario(options={"stop_below": 0.05}),
)
