"""EAGLE (Li et al. 2401.15077): a head that continues the target's last hidden state drafts token by token.

A chain, or with the option `widths` a tree of that shape whose siblings are drawn
without replacement.
"""

from __future__ import annotations

from typing import Final

from engine.core.options import numbers
from engine.core.types import QKind
from engine.proposers.draft_model.chain_draft import DrawSettings
from engine.proposers.draft_model.specinfer import widths_shape
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth
from engine.proposers.interface import Proposer, ProposerFacts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.trained.feature_draft import FeatureChain
from engine.proposers.trained.feature_head import feature_head
from engine.proposers.trained.feature_reader import FeatureReader
from engine.sampling.draw import Siblings

CHAIN: Final = (1,)


class EagleProposer(FeatureChain):
    """Drafts with an EAGLE-1 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `widths` and `stop_below`.

        Raises:
            InvalidRequest: an option that is not taken, or a head of another family.
            ModelNeeded: no head.
            ModelError: a head that does not fit the target.
        """
        options = read("eagle", parts.options)
        head = feature_head("eagle", parts, ("eagle",))
        reader = FeatureReader(head, parts.rows, parts.capacity)
        widths = tuple(int(width) for width in numbers(options["widths"]))
        facts = ProposerFacts(
            "eagle",
            shape="chain" if widths == CHAIN else "tree",
            q_kind=QKind.FULL,
            can_couple=True,
            state="request",
            hidden=head.layers,
            options=options,
            steady=_steady(widths, options["stop_below"], head.decoder.context),
        )
        if widths == CHAIN:
            return cls(reader, DrawSettings.of(parts, options["stop_below"]), facts)
        shape = TreeGrowth(Siblings.WITHOUT_REPLACEMENT, lambda size, depth: widths_shape(widths[:depth], size))
        return StaticTreeProposer(parts, [reader], shape, facts)


def _steady(widths: tuple[int, ...], stop_below: float, context: int) -> SteadyDrafts | None:
    """Of a chain that never stops early; a tree's size depends on what is left of it."""
    return SteadyDrafts(context) if widths == CHAIN and not stop_below else None
