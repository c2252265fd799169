"""The draft model never reads the last token of a draft that was kept as a whole.

Its cache has a hole, or an older token, one place behind. The output is right
to the last bit, because q is what the tokens were drawn from; after a hole the
draft knows less, and fewer of its tokens are kept.
"""

from __future__ import annotations

from dataclasses import replace

from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs


class _OneBehind(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._written: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        tokens = placement.tokens.clone()
        for b, length in enumerate(placement.lengths):
            written = self._written.setdefault(placement.first_row + b, {})
            for t in range(length):
                slot = int(placement.slots[b, t])
                if want.logits and t < length - 1:
                    tokens[b, t] = written.get(slot, 0)
                written[slot] = int(tokens[b, t])
        return self.inner.forward(cache, replace(placement, tokens=tokens), want)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, draft=lambda model: _OneBehind(parts.draft(model)))


FAULT = Fault(
    name="draft_one_behind",
    breaks="acceptance",
    upstream="vllm-project/vllm#14649",
    seen_from="engine evidence",
    parts=("draft",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
)
