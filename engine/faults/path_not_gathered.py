"""After a tree step the accepted nodes' columns stay where they are.

The first columns are taken for the path. That is right for chains and for the
first branch of every tree, which is the one most often accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.models.interface import SlotCache


def _leave(_cache: SlotCache, _row: int, _committed: int, _path: Sequence[int]) -> None:
    """Moves nothing."""


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, keep=_leave)


FAULT = Fault(
    name="path_not_gathered",
    breaks="law",
    upstream="none known: an engine for chains that is given trees",
    seen_from="text",
    parts=("keep",),
    apply=_apply,
    suits=Suits(shape="tree", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL, proposer="specinfer", gamma=6),
)
