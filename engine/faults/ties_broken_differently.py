"""Verification takes the last of the tokens that tie in bfloat16, plain decoding the first of the exact ones.

Both are an argmax of the same row. The output differs wherever two tokens are
about equally likely, and reads as well as before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.sampling.target_rows import TargetRows

LETTERS: Final = 32
"""Tokens of a scripted model."""
AWAY_FROM_ZERO: Final = tuple((token, 16.0) for token in range(LETTERS))
"""Real logits lie around 20, where bfloat16 is coarse and ties are common; scripted ones around 0, where it is fine.

One bias for all tokens moves them there and changes no choice.
"""


class _LastOfTies(TargetRows):
    def best(self, row: int) -> int:
        rounded = torch.from_numpy(self[row].scores).to(torch.bfloat16)
        return int((rounded == rounded.max()).nonzero()[-1])


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, rows=_LastOfTies)


FAULT = Fault(
    name="ties_broken_differently",
    breaks="equality",
    upstream="vllm-project/vllm#7627",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(protocols=(Protocol.GREEDY,), temperature="greedy"),
    scenario=Scenario(protocol=Protocol.GREEDY, sampling=SamplingParams(logit_bias=AWAY_FROM_ZERO)),
)
