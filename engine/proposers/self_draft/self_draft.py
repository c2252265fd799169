"""Drafting with a part of the target, in the loop's own cache.

After every step the target's cache holds all committed tokens but the newest.
Drafting feeds that token at its column and continues in the scratch columns after it;
the drafted part reads the committed keys and values, which are the whole target's.
The verifying forward begins at the newest token too and overwrites all of these columns, so the target never reads
values that the part wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.errors import InvalidRequest
from engine.core.types import Proposal, StepOutcome
from engine.models.interface import Sublayers, WantedOutputs, chain_placement, to_numpy
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings
from engine.proposers.interface import Context, ProposerFacts
from engine.proposers.parts import ProposerParts, TargetSide


class SelfDraftProposer:
    """Autoregressive drafting with a part of the target."""

    def __init__(self, side: TargetSide, part: Sublayers, how: DrawSettings, facts: ProposerFacts) -> None:
        self._model, self._cache = side.model, side.cache
        self._want = WantedOutputs(part=part)
        self._how = how
        self.facts = facts

    def start(self, context: Context) -> None:
        """Nothing to prepare: the loop has read the prompt."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets."""
        drafted = [ChainDraft(context) for context in contexts]
        while any(item.unread for item in drafted):
            self._round(drafted)
        return [item.proposal() for item in drafted]

    def _round(self, drafted: list[ChainDraft]) -> None:
        """One forward of the part for all rows that want another token."""
        waiting = {item.context.row: item for item in drafted if item.unread}
        histories = [waiting[row].history if row in waiting else [] for row in range(1 + max(waiting))]
        newest, starts = [history[-1:] for history in histories], [max(0, len(history) - 1) for history in histories]
        placement = chain_placement(newest, starts, self._cache.trash)
        logits = self._model.forward(self._cache, placement, self._want).logits
        assert logits is not None
        for row, one in waiting.items():
            one.extend(to_numpy(logits[row, 0]), self._how)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Nothing to keep: the verifying forward wrote the committed columns."""

    def finish(self, row: int) -> None:
        """Nothing to forget."""


def require_divisible(kind: str, parts: ProposerParts) -> TargetSide:
    """The target, if it can run in part.

    Raises:
        InvalidRequest: the target is missing, or cannot run in part.
    """
    if parts.target is None:
        raise InvalidRequest(f"proposer {kind} needs the target and its cache")
    if not parts.target.model.divisible:
        raise InvalidRequest(f"proposer {kind} needs a target that can run in part; use loader: lean")
    return parts.target
