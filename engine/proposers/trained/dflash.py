"""DFlash: all tokens of a draft in one pass of a block drafter.

Each position's logits are a function of the committed tokens, so q factorises; what
is drawn at one position reaches another only through the request's penalties.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.types import Proposal, QKind, StepOutcome
from engine.models.interface import to_numpy
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings
from engine.proposers.draft_model.own_cache import limited
from engine.proposers.interface import Context, ProposerFacts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.trained.block_draft import BlockDrafter


class DFlashProposer:
    """Drafts chains of up to a block's masks."""

    def __init__(self, drafter: BlockDrafter, how: DrawSettings) -> None:
        self._drafter = drafter
        self._how = how
        self.facts = ProposerFacts(
            "dflash",
            shape="chain",
            q_kind=QKind.FULL,
            can_couple=True,
            state="request",
            hidden=drafter.hidden,
            options={"stop_below": how.stop_below},
            steady=None if how.stop_below else SteadyDrafts(drafter.context - drafter.most, drafter.most),
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> DFlashProposer:
        """From a head and the option `stop_below`.

        Raises:
            InvalidRequest: an option that is not taken, no head, or one of another family.
            ModelError: a head that does not fit the target.
        """
        options = read("dflash", parts.options)
        return cls(BlockDrafter.build("dflash", parts), DrawSettings.of(parts, options["stop_below"]))

    def start(self, context: Context) -> None:
        """Keep the prompt's states."""
        self._drafter.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets."""
        rows = {context.row: ChainDraft(limited(context, self._drafter.room(context))) for context in contexts}
        drafting = [other.context for other in rows.values() if other.unread]
        for row, scores in (self._drafter.logits(drafting) if drafting else {}).items():
            for logits in scores:
                if rows[row].unread:
                    rows[row].extend(to_numpy(logits), self._how)
        return [rows[context.row].proposal() for context in contexts]

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Keep the states of what was committed."""
        self._drafter.observe(context, verdict)

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._drafter.finish(row)
