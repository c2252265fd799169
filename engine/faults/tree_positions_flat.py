"""The nodes of a tree get consecutive position ids, as if they were a chain.

Depth is what a position must say. In a chain both agree, so only branching
drafts are wrong, and what they leave in the cache.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_placement
from engine.models.interface import Placement


def _flat(placement: Placement) -> Placement:
    if placement.branches is None:
        return placement
    positions = placement.positions.clone()
    for b, length in enumerate(placement.lengths):
        positions[b, :length] = positions[b, 0] + torch.arange(length)
    return replace(placement, positions=positions)


def _apply(parts: EngineParts) -> EngineParts:
    return with_placement(parts, _flat)


FAULT = Fault(
    name="tree_positions_flat",
    breaks="law",
    upstream="none known: the position half of a tree mask, which every tree engine has to get right",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(shape="tree", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL, proposer="specinfer", gamma=6),
)
