"""Drafted tokens are tested without repetition, presence and frequency penalties; bonus tokens have them.

A request that asks for less repetition gets less of it the better its drafts
are, without a word.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import NO_PENALTIES, Told, retold, without


def _retell(told: Told) -> Told:
    return without(told, NO_PENALTIES) if told.drafted else told


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="penalties_missing_on_drafted_rows",
    breaks="law",
    upstream="vllm-project/vllm#18902, #19482, NVIDIA/TensorRT-LLM#17701",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("penalties",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5)),
)
