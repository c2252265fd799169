"""The first step sees the prompt's last token in the place of the one before it, too.

The prompt is read once as a whole and once as the first step's root, one column
early. The first tokens of a response continue another prompt; later ones have
forgotten it.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, chain_placement


class _ReadTwice(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._begins: set[int] = set()

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        if not want.logits:
            self._begins.add(placement.first_row)
            return self.inner.forward(cache, placement, want)
        for row in sorted(self._begins):
            root, slot = int(placement.tokens[row, 0]), int(placement.slots[row, 0])
            again = chain_placement([[root]], [slot - 1], cache.trash, first_row=row)
            self.inner.forward(cache, again, WantedOutputs(logits=False))
        self._begins.clear()
        return self.inner.forward(cache, placement, want)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: _ReadTwice(parts.target(model)))


FAULT = Fault(
    name="prompt_end_read_twice",
    breaks="law",
    upstream="none known: the classic off-by-one where reading the prompt and the first step meet",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL),
)
