"""The target's first layers draft for the whole target (LayerSkip, Elhoushi et al. 2404.16710).

The hidden state after layer E goes through the target's final norm and head. The proposer needs no second model and no
cache of its own: layers below E write keys and values that the verifying forward writes again. Any checkpoint works;
one trained with early exits drafts better.
"""

from __future__ import annotations

from engine.core.errors import InvalidRequest
from engine.core.types import QKind
from engine.models.interface import Sublayers
from engine.proposers.draft_model.chain_draft import DrawSettings
from engine.proposers.interface import ProposerFacts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.self_draft.self_draft import SelfDraftProposer, require_divisible


class EarlyExitProposer(SelfDraftProposer):
    """Drafts with the layers before the exit."""

    @classmethod
    def build(cls, parts: ProposerParts) -> EarlyExitProposer:
        """From the options `exit_layer` (0: half of the layers, at least one) and `stop_below`.

        Raises:
            InvalidRequest: an unknown option, a target that cannot run in part, or an exit after its end.
        """
        options = read("early_exit", parts.options)
        side = require_divisible("early_exit", parts)
        layers = side.model.divisible
        exit_layer = options["exit_layer"] or max(1, layers // 2)
        if exit_layer > layers:
            raise InvalidRequest(
                f"proposer early_exit: option exit_layer is {exit_layer}, but the target has {layers} layers"
            )
        kept = tuple(range(exit_layer))
        facts = ProposerFacts(
            "early_exit",
            shape="chain",
            q_kind=QKind.FULL,
            can_couple=True,
            state="none",
            options={**options, "exit_layer": exit_layer},
            steady=None if options["stop_below"] else SteadyDrafts(side.model.context),
        )
        return cls(side, Sublayers(kept, kept), DrawSettings.of(parts, options["stop_below"]), facts)
