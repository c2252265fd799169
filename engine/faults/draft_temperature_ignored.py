"""A draft is drawn at temperature 1 and verified with q at the request's temperature.

The sampler of the draft was not told. At temperature 1 nothing is wrong.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import SamplingParams
from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario, Suits


def _at_one(seen: Seen) -> Seen:
    params = replace(seen.context.params, temperature=1.0)
    return seen if seen.context.params.greedy else replace(seen, context=replace(seen.context, params=params))


FAULT = replace(
    draw_fault(
        "draft_temperature_ignored",
        Origin("none known: a draft's sampler that is called with its default"),
        token_of=_at_one,
        scenario=Scenario(sampling=SamplingParams(temperature=0.6)),
    ),
    suits=Suits(shape="chain", needs=("temperature",)),
)
