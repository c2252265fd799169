"""A response is one token longer than it may be.

The limit is looked at before a step, not within it. Upstream a whole draft went
over; here the loop drafts no deeper than the limit, so one more step is one
more token.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.sampling.stopping import Decode, StopRule


def _apply(parts: EngineParts) -> EngineParts:
    def stops(params: SamplingParams, eos_ids: tuple[int, ...], decode: Decode) -> StopRule:
        return parts.stops(replace(params, max_new_tokens=params.max_new_tokens + 1), eos_ids, decode)

    return replace(parts, stops=stops)


FAULT = Fault(
    name="length_overrun",
    breaks="structure",
    upstream="ohdearquant/lattice#242",
    seen_from="text",
    parts=("stops",),
    apply=_apply,
    suits=Suits(temperature="both"),
)
