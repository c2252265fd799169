"""Clean arms: the rate of false alarms and the uniformity of p-values.

P-values of a correct engine may be too large too often, but not too small. A one-sided Kolmogorov test compares each
test's p-values with the uniform law, and Holm's method adjusts for the number of tests. Sequential tests contribute
their smallest p-value over time, so the comparison covers optional stopping.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from audit.selftest import battery
from audit.selftest.run_arm import alone, gather
from audit.selftest.scenarios import CleanArm, recording_of, suite_of
from audit.stats.binomial import lower_bound, upper_bound
from audit.stats.multiplicity import holm

NOMINAL: Final = 0.01
"""Family-wise error of the battery on one arm."""
TOLERATED: Final = 0.015
ENOUGH: Final = 1000
"""With at least this many arms the observed rate must not exceed `TOLERATED`, with fewer its lower bound."""
MIN_P_VALUES: Final = 50
"""Minimum number of p-values for a test of uniformity."""
UNIFORM_ALPHA: Final = 0.01


@dataclass(frozen=True, slots=True)
class CleanResult:
    """One clean arm: the checks that raised an alarm, and all p-values by test."""

    arm: CleanArm
    alarms: tuple[str, ...]
    p_values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Uniformity:
    """One test over the clean arms. `excess` is the largest excess of small p-values over the uniform law."""

    test: str
    n: int
    excess: float
    p: float
    adjusted: float
    below: float
    """Share of p-values of at most 0.01."""


@dataclass(frozen=True, slots=True)
class Alarms:
    """The clean arms together."""

    results: tuple[CleanResult, ...]
    uniformity: tuple[Uniformity, ...]

    @property
    def count(self) -> int:
        """Arms with an alarm."""
        return sum(bool(result.alarms) for result in self.results)

    @property
    def rate(self) -> float:
        """Share of the arms with an alarm."""
        return self.count / max(1, len(self.results))

    @property
    def low(self) -> float:
        """99 % lower bound of the rate."""
        return lower_bound(self.count, len(self.results)) if self.results else 0.0

    @property
    def high(self) -> float:
        """99 % upper bound of the rate."""
        return upper_bound(self.count, len(self.results)) if self.results else 1.0

    @property
    def too_many(self) -> bool:
        """True if the rate exceeds the tolerated one."""
        return (self.rate if len(self.results) >= ENOUGH else self.low) > TOLERATED

    @property
    def not_uniform(self) -> tuple[Uniformity, ...]:
        """Tests with too many small p-values."""
        return tuple(item for item in self.uniformity if item.adjusted < UNIFORM_ALPHA)


def try_clean(arm: CleanArm, tokens: int) -> CleanResult:
    """Run one clean arm and its battery."""
    listed = battery.names()
    suite = suite_of(arm.scenario, None, arm.seed, tokens, listed)
    checks = battery.results(gather(suite), listed, battery.recorded(alone(recording_of(suite))))
    values = {test: p for name, result in checks.items() for test, p in battery.p_values(name, result).items()}
    return CleanResult(arm, battery.faulted(checks), values)


def collect(results: Sequence[CleanResult]) -> Alarms:
    """Combine all clean arms and compare each test's p-values with the uniform law."""
    tests = sorted({name for result in results for name in result.p_values})
    columns = {name: [result.p_values[name] for result in results if name in result.p_values] for name in tests}
    tested = {name: values for name, values in columns.items() if len(values) >= MIN_P_VALUES}
    outcome = {name: scipy.stats.kstest(values, "uniform", alternative="greater") for name, values in tested.items()}
    adjusted = holm([float(item.pvalue) for item in outcome.values()])
    uniformity = tuple(
        Uniformity(
            test=name,
            n=len(tested[name]),
            excess=float(fit.statistic),
            p=float(fit.pvalue),
            adjusted=float(p),
            below=float(np.mean(np.array(tested[name]) <= NOMINAL)),
        )
        for (name, fit), p in zip(outcome.items(), adjusted, strict=True)
    )
    return Alarms(tuple(results), uniformity)
