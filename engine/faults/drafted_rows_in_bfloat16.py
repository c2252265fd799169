"""A step that verifies drafts gives its logits in bfloat16, a step without drafts does not.

Another kernel for another shape. The law moves by less than any test of tokens
can see; at temperature 0 the output changes wherever two tokens are about as
likely.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_logits
from engine.models.interface import Placement


def _round(logits: Tensor, placement: Placement) -> Tensor:
    drafted = torch.tensor([length > 1 for length in placement.lengths])
    rounded = logits.to(torch.bfloat16).to(logits.dtype)
    return torch.where(drafted[:, None, None].to(logits.device), rounded, logits)


def _apply(parts: EngineParts) -> EngineParts:
    return with_logits(parts, _round)


FAULT = Fault(
    name="drafted_rows_in_bfloat16",
    breaks="equality",
    upstream="vllm-project/vllm#5313, #7627",
    seen_from="text",
    parts=("target",),
    apply=_apply,
    suits=Suits(temperature="both"),
    scenario=Scenario(protocol=Protocol.GREEDY, sampling=SamplingParams(temperature=0.0)),
)
