"""Drafted tokens get position ids that are one too large.

What each token sees is right, its rotation is not. A scripted model knows
positions only by their order, so this needs a model with weights.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_placement
from engine.models.interface import Placement


def _late(placement: Placement) -> Placement:
    # the mask follows positions unless it is given
    positions = placement.positions.clone()
    for b, length in enumerate(placement.lengths):
        positions[b, 1:length] += 1
    return replace(placement, positions=positions, branches=placement.visible)


def _apply(parts: EngineParts) -> EngineParts:
    return with_placement(parts, _late)


FAULT = Fault(
    name="positions_off_by_one",
    breaks="law",
    upstream="huggingface/transformers#30042, #30413",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("weights",)),
    scenario=Scenario(protocol=Protocol.GUMBEL, models="bundled"),
)
