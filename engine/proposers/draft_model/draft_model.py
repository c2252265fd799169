"""An independent draft model: gamma tokens, one after the other, for all rows at once.

The proposer keeps its own cache. After a verdict, the columns that hold accepted tokens stay valid and the others are
overwritten; tokens that the draft has not read yet (the recovered or bonus token, and after full acceptance the last
drafted one) are fed first.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.errors import ModelNeeded
from engine.core.types import Proposal, StepOutcome
from engine.models.interface import TargetModel, WantedOutputs, chain_placement, to_numpy
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings, read_prompt, within
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read


class DraftModelProposer:
    """Autoregressive drafting with a small model."""

    def __init__(self, parts: ProposerParts, model: TargetModel, stop_below: float) -> None:
        self._model = model
        self._cache = model.new_cache(parts.rows, min(parts.capacity, model.context))
        self._valid = [0] * parts.rows
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

    def start(self, context: Context) -> None:
        """Read the prompt but its last token, which the first round feeds."""
        self._valid[context.row] = read_prompt(self._model, self._cache, context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets; rows that no longer fit the draft's context get none."""
        drafted = [ChainDraft(within(self._cache, context)) for context in contexts]
        while any(item.unread for item in drafted):
            self._round(drafted)
        return [item.proposal() for item in drafted]

    def _round(self, drafted: list[ChainDraft]) -> None:
        """One forward for all rows that want another token."""
        waiting = {item.context.row: item for item in drafted if item.unread}
        tokens = [waiting[row].history[self._valid[row] :] if row in waiting else [] for row in range(self._cache.rows)]
        placement = chain_placement(tokens, list(self._valid), self._cache.trash)
        logits = self._model.forward(self._cache, placement, WantedOutputs()).logits
        assert logits is not None
        for row, one in waiting.items():
            self._valid[row] = len(one.history)
            one.extend(to_numpy(logits[row, len(tokens[row]) - 1]), self._how)

    def replace_model(self, model: TargetModel, contexts: Sequence[Context]) -> None:
        """Draft with other weights of the same shape from here on.

        The cache holds values from the old weights, so the histories of `contexts`, all active rows, are read again.
        """
        self._model = model
        for context in contexts:
            self._valid[context.row] = read_prompt(model, self._cache, context)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Columns up to the last accepted token stay valid."""
        committed = len(context.history) - len(verdict.emitted) + verdict.n_accepted
        self._valid[context.row] = min(self._valid[context.row], committed, len(context.history) - 1)

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._valid[row] = 0
