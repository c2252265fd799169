"""Within a step, each token's log-probability is taken from the row before its own.

The tokens are right. What is reported about them belongs to their neighbours,
which only a step of several tokens shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.core.types import Request, StepRecord
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits


def _shift(_request: Request, record: StepRecord) -> StepRecord:
    return replace(record, logits=np.concatenate([record.logits[:1], record.logits[:-1]]))


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, record=_shift)


FAULT = Fault(
    name="logprob_rows_shifted",
    breaks="replay",
    upstream="vllm-project/vllm#33391",
    seen_from="engine evidence",
    parts=("record",),
    apply=_apply,
    suits=Suits(temperature="both"),
)
