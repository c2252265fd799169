"""What faults of models and proposers are made of: wrappers that pass everything on.

A fault overrides one method or changes one result. Knows no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from engine.core.types import Proposal
from engine.decode.seams import EngineParts
from engine.faults.broken_proposer import ChangedProposer, as_asked, as_offered
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs
from engine.proposers.interface import Context, Proposer

ChangeLogits = Callable[[Tensor, Placement], Tensor]
"""([B, T, V] logits of a verification step, where its tokens went) -> what the verifier gets, a tensor of its own."""
ChangePlacement = Callable[[Placement], Placement]
ChangeProposals = Callable[[Sequence[Context], Sequence[Proposal]], Sequence[Proposal]]


class WrappedModel:
    """A model that is the inner one in everything."""

    def __init__(self, inner: TargetModel) -> None:
        self.inner = inner

    @property
    def vocabulary(self) -> int:
        """As the inner model's."""
        return self.inner.vocabulary

    @property
    def context(self) -> int:
        """As the inner model's."""
        return self.inner.context

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """As the inner model's."""
        return self.inner.eos_ids

    @property
    def divisible(self) -> int:
        """As the inner model's."""
        return self.inner.divisible

    @property
    def facts(self) -> Mapping[str, Any]:
        """As the inner model's: a fault does not give itself away."""
        return self.inner.facts

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As the inner model's."""
        return self.inner.new_cache(rows, capacity)

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """As the inner model's."""
        return self.inner.forward(cache, placement, want)


class _ChangedLogits(WrappedModel):
    def __init__(self, inner: TargetModel, change: ChangeLogits) -> None:
        super().__init__(inner)
        self._change = change

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, placement, want)
        if forward.logits is None:
            return forward
        return replace(forward, logits=self._change(forward.logits, placement))


class _ChangedPlacement(WrappedModel):
    def __init__(self, inner: TargetModel, change: ChangePlacement) -> None:
        super().__init__(inner)
        self._change = change

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        return self.inner.forward(cache, self._change(placement) if want.logits else placement, want)


class _ChangedTogether(ChangedProposer):
    def __init__(self, inner: Proposer, change: ChangeProposals) -> None:
        super().__init__(inner, as_asked, as_offered)
        self._change = change

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        return self._change(contexts, super().propose(contexts))


def with_logits(parts: EngineParts, change: ChangeLogits) -> EngineParts:
    """The verifier gets other logits than the target gave."""
    return replace(parts, target=lambda model: _ChangedLogits(parts.target(model), change))


def with_placement(parts: EngineParts, change: ChangePlacement) -> EngineParts:
    """The target reads the tokens of a verification step from elsewhere than the loop placed them."""
    return replace(parts, target=lambda model: _ChangedPlacement(parts.target(model), change))


def with_proposals(parts: EngineParts, make: Callable[[], ChangeProposals]) -> EngineParts:
    """The loop gets other proposals than the proposer made; `make` is called for each batch of requests."""
    return replace(parts, proposer=lambda proposer: _ChangedTogether(parts.proposer(proposer), make()))
