"""Drafted tokens are tested without logit bias, bad words and minimum length; bonus tokens have them.

A forbidden token can come out of a residual, and a wanted one is refused.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import NO_MASKS, Told, retold, without


def _retell(told: Told) -> Told:
    return without(told, NO_MASKS) if told.drafted else told


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="masks_missing_on_drafted_rows",
    breaks="law",
    upstream="vllm-project/vllm#42744, #19482",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("masks",)),
    scenario=Scenario(
        sampling=SamplingParams(temperature=1.0, bad_words=((1,), (8,), (19,)), logit_bias=((4, 2.0), (23, -2.0)))
    ),
)
