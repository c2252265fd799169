"""Every acceptance number is 0, so that every drafted token of positive p is kept."""

from __future__ import annotations

import numpy as np

from engine.core.types import Floats
from engine.faults.broken_numbers import numbers_fault
from engine.faults.chain_walk import Origin
from engine.sampling.rng import Purpose, Randomness


class _Zero(Randomness):
    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] zeros for acceptance, and the real numbers for the rest."""
        return np.zeros(count) if purpose is Purpose.ACCEPT else super().uniforms(position, purpose, count, index)


FAULT = numbers_fault("zero_accepts_everything", Origin("vllm-project/vllm-ascend#13730"), _Zero)
