"""A draft head reads the hidden states of the layers before those that it was trained on.

The output is right, because the target decides. The head drafts from what it
never learned to read, and fewer drafts are kept.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, WantedOutputs


class _LayersBefore(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        before = {layer: max(0, layer - 1) for layer in want.hidden}
        forward = self.inner.forward(cache, placement, replace(want, hidden=tuple(sorted(set(before.values())))))
        return replace(forward, hidden={layer: forward.hidden[other] for layer, other in before.items()})


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: _LayersBefore(parts.target(model)))


FAULT = Fault(
    name="wrong_aux_layers",
    breaks="acceptance",
    upstream="sgl-project/sglang#21272, vllm-project/vllm#11672",
    seen_from="engine evidence",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("weights", "hidden states")),
    # without chance in the draws, rates of few prompts lie closer together
    scenario=Scenario(proposer="eagle3", sampling=SamplingParams(), models="bundled"),
)
