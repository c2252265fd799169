"""The draft is drawn from logits rounded to bfloat16, and q is told from the logits as they were."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin


def _rounded(seen: Seen) -> Seen:
    return replace(seen, logits=torch.tensor(seen.logits).bfloat16().float().numpy())


FAULT = draw_fault("draft_from_bf16_logits", Origin("deepseek-ai/DeepSpec#31", "engine evidence"), token_of=_rounded)
