"""Every reported log-probability is 0: certainty, for every token.

The tokens are right and nothing about them can be believed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.core.types import Request, StepRecord
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits

FAR_BELOW = -1e9


def _certain(_request: Request, record: StepRecord) -> StepRecord:
    logits = np.full_like(record.logits, FAR_BELOW)
    logits[np.arange(len(logits)), [each.token for each in record.verdict.emitted]] = 0.0
    return replace(record, logits=logits)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, record=_certain)


FAULT = Fault(
    name="logprobs_zero",
    breaks="replay",
    upstream="ggml-org/llama.cpp#27972, vllm-project/vllm#17876",
    seen_from="engine evidence",
    parts=("record",),
    apply=_apply,
    suits=Suits(temperature="both"),
)
