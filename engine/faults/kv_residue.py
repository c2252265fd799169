"""Every twentieth column of the cache keeps what a refused draft left there.

Like a rollback that does nothing, but seldom: most requests are right, and what
is wrong in the others reads like another sample.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.stale_columns import StaleColumns

EVERY = 20


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, target=lambda model: StaleColumns(parts.target(model), every=EVERY))


FAULT = Fault(
    name="kv_residue",
    breaks="law",
    upstream="vllm-project/vllm#55894, #52942",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
    scenario=Scenario(protocol=Protocol.GUMBEL),
)
