"""In a batch whose drafts differ in length, each request gets the target's rows of its neighbour.

Alone, or beside drafts of its own length, a request is right: what comes out
depends on what is served next to it.
"""

from __future__ import annotations

from torch import Tensor

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_logits
from engine.models.interface import Placement


def _rotate(logits: Tensor, placement: Placement) -> Tensor:
    lengths = placement.lengths
    active = [b for b, length in enumerate(lengths) if length]
    changed = logits.clone()
    if len({lengths[b] for b in active}) > 1:
        for b, other in zip(active, [active[-1], *active[:-1]], strict=True):
            count = min(lengths[b], lengths[other])
            changed[b, :count] = logits[other, :count]
    return changed


def _apply(parts: EngineParts) -> EngineParts:
    return with_logits(parts, _rotate)


FAULT = Fault(
    name="rows_of_another_request",
    breaks="law",
    upstream="vllm-project/vllm#41768, sgl-project/sglang#32666",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("several requests",)),
    scenario=Scenario(protocol=Protocol.GUMBEL, options={"stop_below": 0.4}),
)
