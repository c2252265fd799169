"""A draft is drawn from q in full precision and verified with the q of logits in bfloat16.

The law moves by less than a test of tokens can see. Whoever draws the token
again from the recorded row sees that q is not what it was drawn from.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin


def _rounded(seen: Seen) -> Seen:
    return replace(seen, logits=torch.tensor(seen.logits).bfloat16().float().numpy())


FAULT = draw_fault(
    "q_rounded",
    Origin("none known: drafts kept in half precision between the draft and the test", "engine evidence"),
    q_of=_rounded,
)
