"""The draft is drawn from its ten most likely tokens, and q is told whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin

KEPT: Final = 10


def _truncated(seen: Seen) -> Seen:
    return replace(seen, context=replace(seen.context, params=replace(seen.context.params, top_k=KEPT)))


FAULT = draw_fault("draft_top_10_raw_q", Origin("huggingface/transformers#47932"), token_of=_truncated)
