"""The last block of a prompt is taken from a cache that another request filled.

The block's key matched, its content did not. A request in a fresh row is right;
one that follows another reads the end of a prompt that is not its own.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs

BLOCK = 4


class _StalePrefix(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._written: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        read = placement if want.logits else self._reuse(placement)
        for b, length in enumerate(read.lengths):
            tokens, slots = read.tokens[b, :length].tolist(), read.slots[b, :length].tolist()
            self._written.setdefault(read.first_row + b, {}).update(zip(slots, tokens, strict=True))
        return self.inner.forward(cache, read, want)

    def _reuse(self, placement: Placement) -> Placement:
        written, length = self._written.get(placement.first_row, {}), placement.lengths[0]
        tokens = placement.tokens.clone()
        for t in range(max(0, length - BLOCK), length):
            tokens[0, t] = written.get(int(placement.slots[0, t]), int(tokens[0, t]))
        return replace(placement, tokens=tokens)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: _StalePrefix(parts.target(model)))


FAULT = Fault(
    name="stale_prefix_block",
    breaks="law",
    upstream="vllm-project/vllm#57128, #53912, sgl-project/sglang#19897",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("several requests",)),
    scenario=Scenario(protocol=Protocol.GUMBEL, rows=2),
)
