"""The number that rejected a token draws its replacement too: the acceptance rate is right, the law is not."""

from __future__ import annotations

from engine.faults.broken_numbers import ReusedNumbers, numbers_fault
from engine.faults.chain_walk import Origin
from engine.sampling.rng import Purpose

FAULT = numbers_fault(
    "one_number_accept_and_residual",
    Origin("vllm-project/vllm-ascend#16370"),
    lambda seed, stream: ReusedNumbers(seed, stream, Purpose.RESIDUAL, Purpose.ACCEPT),
)
