"""What a replay counts, and when two recorded numbers count as equal. Knows nothing about rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from audit.evidence.structure import Fault

TOLERANCE = 1e-9
"""Absolute or relative difference of float64 numbers that count as equal."""


@dataclass(slots=True)
class Tally:
    """Decisions counted while replaying: all, those recomputed, and what differed."""

    decisions: int = 0
    recomputed: int = 0
    faults: list[Fault] = field(default_factory=list)

    def decision(self, recomputed: bool, faults: list[Fault]) -> None:
        """Count one decision; several differences in it are one violation."""
        self.decisions += 1
        self.recomputed += recomputed
        if faults:
            self.faults.append(Fault(faults[0].step, "; ".join(each.message for each in faults)))


def identical(recorded: float, computed: float) -> bool:
    """Random numbers are equal to the last bit or not the same numbers."""
    return recorded == computed or (math.isnan(recorded) and math.isnan(computed))


def same(recorded: float, computed: float) -> bool:
    """Equal but for rounding."""
    return identical(recorded, computed) or math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
