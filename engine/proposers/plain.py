"""Drafts nothing: plain decoding is the same loop with an empty proposal."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.types import Proposal, QKind, StepOutcome
from engine.proposers.interface import Context, ProposerFacts


class PlainProposer:
    """The absence of speculation."""

    facts = ProposerFacts("plain", shape="chain", q_kind=QKind.NONE, can_couple=True, state="none")

    def start(self, context: Context) -> None:
        """Nothing to prepare."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Empty proposals."""
        return [Proposal() for _ in contexts]

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Nothing to learn."""

    def finish(self, row: int) -> None:
        """Nothing to forget."""
