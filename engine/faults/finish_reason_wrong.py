"""Responses that ended by themselves say that they ran out of tokens.

The length is looked at first. Whoever counts truncated responses counts too
many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.core.types import FinishReason, SamplingParams, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.sampling.stopping import StopRule, TruncatedOutcome


@dataclass(frozen=True, slots=True)
class _LengthOnly(StopRule):
    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        cut = StopRule.cut(self, generated, verdict)
        return cut if cut.reason is None else replace(cut, reason=FinishReason.LENGTH)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, stops=_LengthOnly)


FAULT = Fault(
    name="finish_reason_wrong",
    breaks="structure",
    upstream="sgl-project/sglang#31599",
    seen_from="engine evidence",
    parts=("stops",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("end tokens",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, stop_token_ids=(2, 9, 17, 28))),
)
