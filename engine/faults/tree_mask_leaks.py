"""Each node of a tree sees the node before it as well, whether that is its parent or not.

A causal mask over the flattened tree, one column wide. Siblings look at each
other; chains are right.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_placement
from engine.models.interface import Placement


def _leak(placement: Placement) -> Placement:
    if placement.branches is None:
        return placement
    branches = placement.branches.clone()
    for b, length in enumerate(placement.lengths):
        for t in range(2, length):
            branches[b, t, placement.slots[b, t - 1]] = True
    return replace(placement, branches=branches)


def _apply(parts: EngineParts) -> EngineParts:
    return with_placement(parts, _leak)


FAULT = Fault(
    name="tree_mask_leaks",
    breaks="law",
    upstream="none known: what a causal mask does where a tree mask is due",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(shape="tree", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL, proposer="specinfer", gamma=6),
)
