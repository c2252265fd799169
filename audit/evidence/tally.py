"""Counters of a replay, and the tolerance for equal recorded numbers."""

import math
from dataclasses import dataclass, field

from audit.evidence.structure import Violation

TOLERANCE = 1e-9
"""Absolute or relative tolerance for equal float64 numbers."""
CLOSE = TOLERANCE / 2
"""Far above rounding, and within the rules' tolerance."""
ROUNDED = 1e-6
"""Relative rounding of a float32 cell."""


@dataclass(slots=True)
class Tally:
    """Counts of a replay: all decisions, recomputed decisions, violations."""

    decisions: int = 0
    recomputed: int = 0
    faults: list[Violation] = field(default_factory=list)

    def decision(self, recomputed: bool, faults: list[Violation]) -> None:
        """Count one decision; several differences in it are one violation."""
        self.decisions += 1
        self.recomputed += recomputed
        if faults:
            self.faults.append(Violation(faults[0].step, "; ".join(fault.message for fault in faults)))


def identical(recorded: float, computed: float) -> bool:
    """True if two random numbers are equal to the last bit; no rounding is allowed."""
    return recorded == computed or (math.isnan(recorded) and math.isnan(computed))


def same(recorded: float, computed: float) -> bool:
    """True if two numbers are equal up to rounding."""
    return identical(recorded, computed) or math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
