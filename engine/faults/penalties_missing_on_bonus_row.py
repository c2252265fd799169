"""Bonus tokens are drawn without penalties, bias and masks; drafted tokens are tested with them.

Diluted by every token that was drafted: only a step that keeps its whole draft
shows it.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import NO_MASKS, NO_PENALTIES, Told, retold, without


def _retell(told: Told) -> Told:
    return told if told.drafted or not told.path else without(told, NO_PENALTIES | NO_MASKS)


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="penalties_missing_on_bonus_row",
    breaks="law",
    upstream="none known: the other half of engines that transform drafted and bonus rows in two places",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("penalties",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5)),
)
