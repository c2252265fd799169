"""The bonus token is drawn from the row of the last drafted token, not from the one after it.

A wrong slice end: only steps that keep their whole draft are touched, and a
test that pools all tokens sees the fault diluted by those that do not.
"""

from __future__ import annotations

from torch import Tensor

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_logits
from engine.models.interface import Placement


def _repeat_last(logits: Tensor, placement: Placement) -> Tensor:
    changed = logits.clone()
    for b, length in enumerate(placement.lengths):
        if length > 1:
            changed[b, length - 1] = logits[b, length - 2]
    return changed


def _apply(parts: EngineParts) -> EngineParts:
    return with_logits(parts, _repeat_last)


FAULT = Fault(
    name="bonus_wrong_row",
    breaks="law",
    upstream="NVIDIA/TensorRT-LLM#15098",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL),
)
