"""Drafted tokens are tested at temperature 1, whatever the request asked for; bonus tokens are right.

Recorded logits are right as well, so whoever compares log-probabilities sees
nothing.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import Told, retold, without


def _retell(told: Told) -> Told:
    return without(told, {"temperature": 1.0}) if told.drafted and not told.params.greedy else told


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="temperature_ignored_on_drafted_rows",
    breaks="law",
    upstream="vllm-project/vllm#55005, ohdearquant/lattice#388",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(needs=("temperature",)),
    scenario=Scenario(sampling=SamplingParams(temperature=0.6)),
)
