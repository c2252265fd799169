"""What a step decided after an end token is emitted and counted.

The end is found when the step is over. As many tokens too many as the step had
left, so plain decoding never shows it.
"""

from __future__ import annotations

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.late_stops import late


def _apply(parts: EngineParts) -> EngineParts:
    return late(parts, "end tokens")


FAULT = Fault(
    name="tokens_after_end_token",
    breaks="structure",
    upstream="vllm-project/vllm#56101, #56137, sgl-project/sglang#39826",
    seen_from="text",
    parts=("stops",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("end tokens",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, stop_token_ids=(2, 9, 17, 28))),
)
