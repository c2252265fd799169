"""The request's seed is ignored: each run draws from the operating system's entropy."""

from __future__ import annotations

import random

from engine.faults.broken_numbers import numbers_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario, Suits
from engine.sampling.rng import Randomness

ANY_SAMPLED = Suits()


def _unseeded(_seed: int, stream: int) -> Randomness:
    return Randomness(random.SystemRandom().getrandbits(63), stream)


FAULT = numbers_fault(
    "seed_ignored",
    Origin("vllm-project/vllm#6038, #10863", "engine evidence", "replay"),
    _unseeded,
    ANY_SAMPLED,
    Scenario(),
)
