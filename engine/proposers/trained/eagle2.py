"""EAGLE-2 (Li et al. 2406.16858): a tree that grows where the head is sure, from a head of EAGLE-1 or EAGLE-3."""

from __future__ import annotations

from typing import Any

from engine.core.types import QKind
from engine.proposers.interface import ProposerFacts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.trained.feature_draft import DynamicTree, DynamicTreeSize
from engine.proposers.trained.feature_head import FeatureHead, feature_head
from engine.proposers.trained.feature_reader import FeatureReader


class Eagle2Proposer(DynamicTree):
    """Drafts dynamic trees."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Eagle2Proposer:
        """From a head and the options `top_k` and `depth`.

        Raises:
            InvalidRequest: an option that is not taken, or a head of another family.
            ModelNeeded: no head.
            ModelError: a head that does not fit the target.
        """
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
            state="request",
            hidden=head.layers,
            options=options,
            measured=False,
        )
        return cls(reader, reach, parts.eos_ids, facts)
