"""After a tree step the columns of the nodes before the accepted ones are kept.

Tokens and decisions are right in that step; the next ones are computed after a
path that was not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.models.interface import SlotCache


def _apply(parts: EngineParts) -> EngineParts:
    def keep(cache: SlotCache, row: int, committed: int, path: Sequence[int]) -> None:
        parts.keep(cache, row, committed, [max(0, node - 1) for node in path])

    return replace(parts, keep=keep)


FAULT = Fault(
    name="wrong_path_gathered",
    breaks="law",
    upstream="none known: an index that is off by one in the gather after a tree step",
    seen_from="text",
    parts=("keep",),
    apply=_apply,
    suits=Suits(shape="tree", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL, proposer="specinfer", gamma=6),
)
