"""Drafts nothing: plain decoding is the same loop with an empty proposal."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.types import Proposal, QKind
from engine.proposers.interface import Context, ProposerFacts, StatelessProposer


class PlainProposer(StatelessProposer):
    """The absence of speculation."""

    facts = ProposerFacts("plain", shape="chain", q_kind=QKind.NONE, can_couple=True, state="none")

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Empty proposals."""
        return [Proposal() for _ in contexts]
