"""Keys and values of refused drafts stay in the cache, and those of the right tokens are lost.

Rolling back does nothing. Every decision is right for the rows that it sees,
and the rows are wrong from the second step after a refusal on.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.stale_columns import StaleColumns


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: StaleColumns(parts.target(model), every=1))


FAULT = Fault(
    name="kv_not_rolled_back",
    breaks="law",
    upstream="ml-explore/mlx-lm#1109, #1423, #1470",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL),
)
