"""Drafts only as long as they pay: the cost model of chain speculation, applied to each request before each step.

With acceptance probability alpha, k drafted tokens give a step 1 + alpha + ... + alpha^k expected tokens and cost it
1 + k c plain forwards; the rule drafts the k up to gamma with the largest ratio, none if none pays. alpha is estimated
from the request's own earlier steps: kept and rejected tokens, each counted less with every later step, beside a
constant number of imagined ones. Steps that draft nothing make the estimate drift back, so that a request tries again.

Why this is lossless. The length depends on which drafts of earlier steps were kept. That is settled before the step's
random numbers are drawn, so the step is one of a fixed length given all that came before, and emits its tokens from p.
No other request and no clock has a part in it, hence the same drafts alone and in any batch, on any machine.

What it does not know: how likely this very draft is to be kept, and what a token costs here. The cost is an option,
because a measured one would make runs differ.

Source: the cost model of Leviathan et al. 2211.17192, section 3.5, with the cost of verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.core.errors import InvalidRequest
from engine.core.types import Proposal, StepOutcome
from engine.proposers.interface import Context, Proposer, SharedMemory, memory_of
from engine.record.cost import best_gamma

IMAGINED_KEPT: Final = 1.4
IMAGINED_REJECTED: Final = 0.6
"""Counts that the estimate begins with and returns to: an acceptance of 0.7."""
KEEP: Final = 0.8
"""Share of a count that the next step leaves of it."""


@dataclass(frozen=True, slots=True)
class FadingCounts:
    """Discounted counts of one request's kept and rejected tokens; tokens after a rejection say nothing."""

    kept: float = 0.0
    rejected: float = 0.0

    @property
    def alpha(self) -> float:
        """The estimated probability that a drafted token is kept."""
        kept, rejected = self.kept + IMAGINED_KEPT, self.rejected + IMAGINED_REJECTED
        return kept / (kept + rejected)

    def after(self, drafted: int, kept: int) -> FadingCounts:
        """The counts after a step."""
        return FadingCounts(KEEP * self.kept + kept, KEEP * self.rejected + (kept < drafted))


class PayingProposer:
    """A proposer of chains with shorter budgets."""

    def __init__(self, inner: Proposer, token_cost: float) -> None:
        if inner.facts.shape != "chain":
            raise InvalidRequest(
                f"proposer {inner.facts.name}: option token_cost is for chains, and these options draft trees; "
                "leave one of them out"
            )
        self._inner, self._cost = inner, token_cost
        self._counts: dict[int, FadingCounts] = {}
        self._drafted: dict[int, int] = {}
        self.facts = replace(
            inner.facts,
            state="request" if inner.facts.state == "none" else inner.facts.state,
            options={**inner.facts.options, "token_cost": token_cost},
            steady=None,
        )

    @property
    def memory(self) -> SharedMemory | None:
        """The inner proposer's."""
        return memory_of(self._inner)

    def start(self, context: Context) -> None:
        """Nothing is known of the request's drafts yet."""
        self._counts[context.row] = FadingCounts()
        self._inner.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """The inner proposals under the budgets that pay."""
        shorter = [self._shortened(context) for context in contexts]
        proposals = self._inner.propose(shorter)
        self._drafted = {
            context.row: len(proposal.tree)
            for context, proposal in zip(shorter, proposals, strict=True)
            # a proposer that found nothing to draft says nothing about drafts
            if len(proposal.tree) or not context.budget
        }
        return proposals

    def _shortened(self, context: Context) -> Context:
        alpha = self._counts[context.row].alpha
        return replace(context, budget=best_gamma(alpha, self._cost, most=context.budget))

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Count what was kept."""
        if (drafted := self._drafted.get(context.row)) is not None:
            self._counts[context.row] = self._counts[context.row].after(drafted, verdict.n_accepted)
        self._inner.observe(context, verdict)

    def finish(self, row: int) -> None:
        """Forget the request."""
        del self._counts[row]
        self._inner.finish(row)
