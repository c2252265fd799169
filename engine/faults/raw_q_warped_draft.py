"""The draft is drawn with temperature and truncation, and q is told without: it is too flat."""

from __future__ import annotations

from dataclasses import replace

from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import WARPED


def _unwarped(seen: Seen) -> Seen:
    params = replace(seen.context.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return replace(seen, context=replace(seen.context, params=params))


FAULT = draw_fault("raw_q_warped_draft", Origin("huggingface/transformers#47932"), q_of=_unwarped, scenario=WARPED)
