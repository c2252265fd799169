"""An independent draft model: gamma tokens, one after the other, for all rows at once.

The proposer keeps its own cache. After a verdict, the columns that hold accepted tokens stay valid and the others are
overwritten; tokens that the draft has not read yet (the recovered or bonus token, and after full acceptance the last
drafted one) are fed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.errors import ModelNeeded
from engine.core.types import Proposal, StepOutcome
from engine.models.interface import TargetModel, to_numpy
from engine.proposers.draft_model.chain_draft import CachedDrafter, ChainDraft, DrawSettings, drafted_chains, limited
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read


class DraftModelProposer(CachedDrafter):
    """Autoregressive drafting with a small model."""

    def __init__(self, parts: ProposerParts, model: TargetModel, stop_below: float) -> None:
        super().__init__(model, parts.rows, parts.capacity)
        self._how = DrawSettings.of(parts, stop_below)
        self.facts = ProposerFacts(
            "draft_model",
            options={"stop_below": stop_below},
            steady=None if stop_below else SteadyDrafts(model.context),
            reads_target=False,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> DraftModelProposer:
        """From a draft model and the option `stop_below`."""
        options = read("draft_model", parts.options)
        if parts.draft is None:
            raise ModelNeeded("proposer draft_model needs a draft model")
        return cls(parts, parts.draft, options["stop_below"])

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets; rows that no longer fit the draft's context get none."""
        return drafted_chains([limited(context, self.room(context)) for context in contexts], self._advance)

    def _advance(self, waiting: Mapping[int, ChainDraft]) -> None:
        """One forward for all rows that want another token."""
        for row, logits in self.read_on({row: draft.history for row, draft in waiting.items()}).items():
            waiting[row].extend(to_numpy(logits[-1]), self._how)

    def replace_model(self, model: TargetModel, contexts: Sequence[Context]) -> None:
        """Draft with other weights of the same shape from here on.

        The cache holds values from the old weights, so the histories of `contexts`, all active rows, are read again.
        """
        self._model = model
        for context in contexts:
            self.start(context)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Columns up to the last accepted token stay valid."""
        committed = len(context.history) - len(verdict.emitted) + verdict.n_accepted
        self._valid[context.row] = min(self._valid[context.row], committed, len(context.history) - 1)
