"""Decisions on a difference: within its margin, beyond it, or neither.

Equivalence within a margin is certified if a 1 - 2 alpha interval lies inside the margin, that is, if both one-sided
tests at alpha reject (Schuirmann 1987). The caller must fix the margin before seeing the data.
"""

from enum import StrEnum


class EquivalenceDecision(StrEnum):
    """The decision that a pair of bounds allows."""

    CERTIFIED = "certified"
    """The whole interval lies within the margin."""
    FAULT = "fault"
    """The whole interval lies outside the margin."""
    INCONCLUSIVE = "inconclusive"
    """The interval crosses the margin."""


def decide(low: float, high: float, margin: float) -> EquivalenceDecision:
    """Decide on a signed difference bounded by [low, high], against plus or minus `margin`."""
    if not low <= high:
        raise ValueError(f"bounds {low} and {high} are not in order")
    if -margin <= low and high <= margin:
        return EquivalenceDecision.CERTIFIED
    return EquivalenceDecision.FAULT if low > margin or high < -margin else EquivalenceDecision.INCONCLUSIVE
