"""The draft takes its argmax but reports the softmax as q.

Verification then tests against a distribution that the token was not drawn
from: likely tokens are emitted too often, and the acceptance rate rises. At
temperature 0 nothing changes, so greedy comparisons cannot see it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault
from engine.sampling.draw import DraftContext, Draw


def _apply(parts: EngineParts) -> EngineParts:
    def argmax_draw(rule: DraftRule, logits: NDArray[np.floating[Any]], context: DraftContext) -> Draw:
        drawn = parts.draw(rule, logits, context)
        return drawn if drawn.q is None else replace(drawn, token=int(np.argmax(drawn.q)))

    return replace(parts, draw=argmax_draw)


FAULT = Fault(
    name="argmax_draft_soft_q",
    breaks="law",
    upstream="huggingface/transformers#32867, #47932",
    seen_from="text",
    parts=("draw",),
    apply=_apply,
)
