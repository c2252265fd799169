"""What faults of rollback are made of: cache columns that keep the first token written to them.

Knows which columns, not why.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs


class StaleColumns(WrappedModel):
    """A target whose every `every`-th column cannot be written twice within a request.

    A step still computes with its own tokens; the keys and values that it leaves in such a column are
    those of the token that was there first, which as a rule is a refused draft.
    """

    def __init__(self, inner: TargetModel, every: int) -> None:
        super().__init__(inner)
        self._every = every
        self._first: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """The inner model's, and the old keys and values put back."""
        forward = self.inner.forward(cache, placement, want)
        stale = placement.tokens.clone()
        for b, length in enumerate(placement.lengths):
            self._keep_first(placement, b, length, stale[b], begins=not want.logits)
        if not stale.equal(placement.tokens):
            self.inner.forward(cache, replace(placement, tokens=stale), WantedOutputs(logits=False))
        return forward

    def _keep_first(self, placement: Placement, b: int, length: int, stale: Tensor, begins: bool) -> None:
        if length == 0:
            return
        row = placement.first_row + b
        if begins or int(placement.positions[b, 0]) == 0:
            self._first[row] = {}
        first = self._first.setdefault(row, {})
        for t in range(length):
            slot = int(placement.slots[b, t])
            if slot % self._every == 0:
                stale[t] = first.setdefault(slot, int(stale[t]))
