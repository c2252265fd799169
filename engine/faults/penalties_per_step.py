"""Penalties count one token of each step, its last, however many the step emitted.

The better the drafts, the weaker the penalties: at an acceptance length of 4,
three tokens of four are never counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import Retell, Steps, retold_by_step


def _apply(parts: EngineParts) -> EngineParts:
    steps = Steps()

    def of_step(history: Sequence[int], n_prompt: int) -> Retell:
        counted = (*history[:n_prompt], *steps.ends(history, n_prompt))
        return lambda told: replace(told, committed=counted, path=())

    return retold_by_step(parts, of_step)


FAULT = Fault(
    name="penalties_per_step",
    breaks="law",
    upstream="sgl-project/sglang#33643",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("penalties",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5)),
)
