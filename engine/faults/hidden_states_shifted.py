"""A draft head gets the target's hidden states one token late.

The output is right, fewer drafts are kept: the same numbers for the wrong
tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import WrappedModel
from engine.models.interface import Forward, Placement, SlotCache, WantedOutputs


def _late(states: Tensor) -> Tensor:
    return torch.cat([states[:, :1], states[:, :-1]], dim=1)


class _LateStates(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, placement, want)
        return replace(forward, hidden={layer: _late(states) for layer, states in forward.hidden.items()})


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: _LateStates(parts.target(model)))


FAULT = Fault(
    name="hidden_states_shifted",
    breaks="acceptance",
    upstream="sgl-project/sglang#26329, #28254",
    seen_from="engine evidence",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("weights", "hidden states")),
    # without chance in the draws, rates of few prompts lie closer together
    scenario=Scenario(proposer="eagle3", sampling=SamplingParams(), models="bundled"),
)
