"""The draft draws its tokens by numbers from the operating system: the law holds, no run can be repeated."""

from __future__ import annotations

import random
from dataclasses import replace

from engine.core.types import DraftRule
from engine.decode.seams import EngineParts
from engine.faults.broken_draw import DRAWN, Row
from engine.faults.interface import Fault
from engine.sampling.draw import DraftContext, Draw
from engine.sampling.transforms import inverse_cdf


def _apply(parts: EngineParts) -> EngineParts:
    entropy = random.SystemRandom()

    def draw(rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        drawn = parts.draw(rule, logits, context)
        if drawn.q is None:
            return drawn
        u = entropy.random()
        return replace(drawn, token=inverse_cdf(drawn.q, u), uniform=u)

    return replace(parts, draw=draw)


FAULT = Fault(
    name="unseeded_draft",
    breaks="replay",
    upstream="none known: the first runner of vllm-project/vllm drafts so, with a note in its source, by reading",
    seen_from="engine evidence",
    parts=("draw",),
    apply=_apply,
    suits=DRAWN,
)
