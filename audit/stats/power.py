"""How much evidence a test needs to see an effect, and which effect it can see.

Knows nothing about checks or suites.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """`units` of `unit` (tokens, decisions, prompts) show an `effect` at level `alpha` with probability `power`."""

    units: int
    unit: str
    effect: float
    alpha: float
    power: float
