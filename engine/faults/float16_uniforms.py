"""Random numbers in half precision: some 10,000 values, 1.0 among them."""

from __future__ import annotations

import numpy as np

from engine.core.types import Floats
from engine.faults.broken_numbers import RoundedNumbers, numbers_fault
from engine.faults.chain_walk import Origin


def _half(numbers: Floats) -> Floats:
    return numbers.astype(np.float16).astype(np.float64)


FAULT = numbers_fault(
    "float16_uniforms",
    Origin("none known: Infini-AI-Lab/Sequoia draws them so, by reading", "engine evidence"),
    lambda seed, stream: RoundedNumbers(seed, stream, _half),
)
