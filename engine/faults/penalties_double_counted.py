"""Drafted tokens on a row's path are counted twice by the frequency penalty.

Once when they were drafted and once as output: the deeper in a draft, the more
is counted that is not there.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import Told, retold


def _retell(told: Told) -> Told:
    return replace(told, path=told.path * 2)


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="penalties_double_counted",
    breaks="law",
    upstream="vllm-project/vllm#33251",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("penalties",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, frequency_penalty=0.8)),
)
