"""Random numbers of 24 bits: tokens below one in 16 million come out too often or never."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.core.types import Floats
from engine.faults.broken_numbers import RoundedNumbers, numbers_fault
from engine.faults.chain_walk import Origin

STEPS: Final = 2.0**24


def _short(numbers: Floats) -> Floats:
    return np.asarray(np.floor(numbers * STEPS) / STEPS)


FAULT = numbers_fault(
    "uniforms_of_24_bits",
    Origin("vllm-project/vllm#51367", "engine evidence"),
    lambda seed, stream: RoundedNumbers(seed, stream, _short),
)
