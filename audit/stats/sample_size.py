"""A test's need as a value; what computes one is in `audit.stats.power`, which imports scipy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampleSize:
    """`units` of `unit` (tokens, decisions, prompts) show an `effect` at level `alpha` with probability `power`."""

    units: int
    unit: str
    effect: float
    alpha: float
    power: float
