"""A request at temperature 0 has its drafts tested as if it sampled.

What happens to it in a batch whose other requests sample. Its bonus tokens are
the right ones.
"""

from __future__ import annotations

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import Told, retold, without


def _retell(told: Told) -> Told:
    return without(told, {"temperature": 1.0}) if told.drafted and told.params.greedy else told


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="greedy_request_sampled",
    breaks="equality",
    upstream="vllm-project/vllm#55005",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(protocols=(Protocol.CHAIN, Protocol.TREE, Protocol.BLOCK), temperature="greedy"),
    scenario=Scenario(sampling=SamplingParams(temperature=0.0)),
)
