"""EAGLE-3 (Li et al. 2503.01840): a head that fuses three hidden states of the target and then feeds on its own output.

A chain, or with the option `dynamic` the tree of EAGLE-2. The head may know a part
of the vocabulary only; q is 0 elsewhere.
"""

from __future__ import annotations

from engine.core.types import QKind
from engine.proposers.draft_model.chain_draft import DrawSettings
from engine.proposers.interface import Proposer, ProposerFacts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.trained.eagle2 import Eagle2Proposer
from engine.proposers.trained.feature_draft import FeatureChain
from engine.proposers.trained.feature_head import feature_head
from engine.proposers.trained.feature_reader import FeatureReader


class Eagle3Proposer(FeatureChain):
    """Drafts with an EAGLE-3 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `dynamic`, with `top_k` and `depth`, and `stop_below`, for chains.

        Raises:
            InvalidRequest: an option that is not taken, or a head of another family.
            ModelNeeded: no head.
            ModelError: a head that does not fit the target.
        """
        options = read("eagle3", parts.options)
        head = feature_head("eagle3", parts, ("eagle3",))
        if options["dynamic"]:
            return Eagle2Proposer.over("eagle3", head, parts, options)
        reader = FeatureReader(head, parts.rows, parts.capacity)
        facts = ProposerFacts(
            "eagle3",
            shape="chain",
            q_kind=QKind.FULL,
            can_couple=True,
            state="request",
            hidden=head.layers,
            options=options,
            steady=None if options["stop_below"] else SteadyDrafts(head.decoder.context),
        )
        return cls(reader, DrawSettings.of(parts, options["stop_below"]), facts)
