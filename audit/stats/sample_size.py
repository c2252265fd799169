"""A required sample size as a value. `audit.stats.power`, which imports scipy, computes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampleSize:
    """`units` of `unit` (tokens, decisions, prompts) show an `effect` at level `alpha` with probability `power`."""

    units: int
    unit: str
    effect: float
    alpha: float
    power: float
