"""The Gumbel noise that drew a rejected token draws its replacement too.

The noise is known to have been small at every other token, so the replacement leans
to what the draft passed over. The acceptance rate is right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.core.types import DraftRule, Emitted, Floats, Role
from engine.decode.seams import EngineParts
from engine.faults.broken_draw import Row
from engine.faults.chain_walk import ChainWalk, Trial
from engine.faults.interface import CHAIN_ONLY, Fault
from engine.sampling.draw import DraftContext, Draw
from engine.sampling.transforms import gumbel_argmax


def _by_noise(trial: Trial, left: Floats) -> Emitted:
    token = gumbel_argmax(left, trial.numbers.gumbel(trial.position, len(left)))
    return Emitted(token, Role.RECOVERED, trial.node, float(trial.p[token]))


def _apply(parts: EngineParts) -> EngineParts:
    def draw(rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        drawn = parts.draw(rule, logits, context)
        if drawn.q is None:
            return drawn
        noise = context.randomness.gumbel(len(context.history), len(drawn.q))
        return replace(drawn, token=gumbel_argmax(drawn.q, noise), uniform=float(np.nan))

    return replace(parts, draw=draw, verifier=ChainWalk(parts.verifier.facts, recover=_by_noise))


FAULT = Fault(
    name="shared_gumbel_noise",
    breaks="law",
    upstream="vllm-project/vllm#47386, #54282",
    seen_from="text",
    parts=("verifier", "draw"),
    apply=_apply,
    suits=CHAIN_ONLY,
)
