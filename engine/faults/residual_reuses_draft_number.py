"""The number that drew a rejected token draws its replacement too."""

from __future__ import annotations

from engine.faults.broken_numbers import ReusedNumbers, numbers_fault
from engine.faults.chain_walk import Origin
from engine.sampling.rng import Purpose

FAULT = numbers_fault(
    "residual_reuses_draft_number",
    Origin("vllm-project/vllm#47386, #54282"),
    lambda seed, stream: ReusedNumbers(seed, stream, Purpose.RESIDUAL, Purpose.DRAFT),
)
