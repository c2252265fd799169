"""EAGLE heads: they continue the target's hidden states, token by token or as a tree.

EAGLE (Li et al. 2401.15077) reads the last hidden state. It drafts a chain, or with the option `widths` a tree of that
shape whose siblings are drawn without replacement. EAGLE-2 (Li et al. 2406.16858) grows a tree where a head of EAGLE-1
or EAGLE-3 is sure. EAGLE-3 (Li et al. 2503.01840) fuses three hidden states of the target and then feeds on its own
output: a chain, or with the option `dynamic` the tree of EAGLE-2. Its head may know a part of the vocabulary only; q is
0 elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from engine.core.options import numbers
from engine.core.types import QKind
from engine.proposers.draft_model.chain_draft import DrawSettings
from engine.proposers.draft_model.specinfer import widths_shape
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth
from engine.proposers.interface import Proposer, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.trained.feature_draft import DynamicTree, DynamicTreeSize, FeatureChain
from engine.proposers.trained.feature_head import FeatureHead, FeatureReader, feature_head
from engine.sampling.draw import Siblings

CHAIN: Final = (1,)


class EagleProposer(FeatureChain):
    """Drafts with an EAGLE-1 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `widths` and `stop_below`."""
        options = read("eagle", parts.options)
        head = feature_head("eagle", parts, ("eagle",))
        reader = FeatureReader(head, parts.rows, parts.capacity)
        widths = tuple(int(width) for width in numbers(options["widths"]))
        facts = ProposerFacts(
            "eagle",
            shape="chain" if widths == CHAIN else "tree",
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


class Eagle2Proposer(DynamicTree):
    """Drafts dynamic trees."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Eagle2Proposer:
        """From a head and the options `top_k` and `depth`."""
        options = read("eagle2", parts.options)
        head = feature_head("eagle2", parts, ("eagle", "eagle3"))
        return cls.over("eagle2", head, parts, options)

    @classmethod
    def over(cls, kind: str, head: FeatureHead, parts: ProposerParts, options: dict[str, Any]) -> Eagle2Proposer:
        """Of a proposer that goes by the name `kind`; the cache has columns for all nodes that may be expanded."""
        reach = DynamicTreeSize(options["top_k"], options["depth"])
        reader = FeatureReader(head, parts.rows, parts.capacity + reach.top_k * (reach.depth - 1))
        facts = ProposerFacts(
            kind,
            shape="tree",
            q_kind=QKind.ONE_HOT,
            can_couple=False,
            hidden=head.layers,
            options=options,
            measured=False,
        )
        return cls(reader, reach, parts.eos_ids, facts)


class Eagle3Proposer(FeatureChain):
    """Drafts with an EAGLE-3 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `dynamic`, with `top_k` and `depth`, and `stop_below`, for chains."""
        options = read("eagle3", parts.options)
        head = feature_head("eagle3", parts, ("eagle3",))
        if options["dynamic"]:
            return Eagle2Proposer.over("eagle3", head, parts, options)
        reader = FeatureReader(head, parts.rows, parts.capacity)
        facts = ProposerFacts(
            "eagle3",
            hidden=head.layers,
            options=options,
            steady=None if options["stop_below"] else SteadyDrafts(head.decoder.context),
        )
        return cls(reader, DrawSettings.of(parts, options["stop_below"]), facts)
