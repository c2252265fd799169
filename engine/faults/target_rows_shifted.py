"""Every drafted token after the first is verified against the target's row before its own.

The rows are real ones, so each token is likely after a prefix that is one token
shorter. The decisions replay: only a row computed anew shows that it is the
wrong one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario
from engine.faults.wrapping import with_logits
from engine.models.interface import Placement


def _shift(logits: Tensor, _placement: Placement) -> Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def _apply(parts: EngineParts) -> EngineParts:
    return with_logits(parts, _shift)


FAULT = Fault(
    name="target_rows_shifted",
    breaks="law",
    upstream="vllm-project/vllm#54928, #51812",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    scenario=Scenario(protocol=Protocol.GUMBEL),
)
