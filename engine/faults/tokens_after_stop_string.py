"""What a step decided after a stop string stays in the tokens.

The text may be cut right and the token ids and log-probabilities beside it not.
"""

from __future__ import annotations

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.late_stops import late


def _apply(parts: EngineParts) -> EngineParts:
    return late(parts, "stop strings")


FAULT = Fault(
    name="tokens_after_stop_string",
    breaks="structure",
    upstream="vllm-project/vllm#47616, snowflakedb/ArcticInference#161",
    seen_from="text",
    parts=("stops",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("stop strings",)),
    scenario=Scenario(protocol=Protocol.GUMBEL, sampling=SamplingParams(temperature=1.0, stop=("e", "k", "q", "w"))),
)
