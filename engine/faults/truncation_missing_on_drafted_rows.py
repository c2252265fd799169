"""Drafted tokens are tested without top-k, top-p and min-p; bonus tokens are truncated as asked.

The draft is truncated, so that few of the forbidden tokens are ever offered:
what is wrong is their share of the residual.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import NO_TRUNCATION, Told, retold, without


def _retell(told: Told) -> Told:
    return without(told, NO_TRUNCATION) if told.drafted else told


def _apply(parts: EngineParts) -> EngineParts:
    return retold(parts, _retell)


FAULT = Fault(
    name="truncation_missing_on_drafted_rows",
    breaks="law",
    upstream="vllm-project/vllm#42744",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(needs=("truncation",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, top_k=5)),
)
