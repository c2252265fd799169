"""The cost model of chain speculation, and its terms measured (Leviathan et al. 2211.17192, section 3).

alpha is the acceptance probability of a drafted token, assumed independent of its position; tau the tokens per target
forward; rho the cost of one drafted position in units of one plain target forward; sigma the cost of verifying gamma +
1 tokens in the same unit. The model omits costs common to both sides: reading prompts, sampling, recording.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.record.trace import Trace


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean wall time of the parts of one step of the whole batch, in microseconds."""

    draft_us: float
    verify_us: float


@dataclass(frozen=True, slots=True)
class Costs:
    """rho and sigma, in plain target forwards; rho * gamma is the drafting time of a step."""

    rho: float
    sigma: float

    def of_token(self, gamma: int) -> float:
        """The cost of drafting and verifying one of gamma tokens: the option `token_cost` of proposers."""
        return self.rho + (self.sigma - 1.0) / gamma


def step_times(traces: Iterable[Trace]) -> StepTimes:
    """Means over the batch's steps; NaN without one.

    A step of b requests appears in b traces, so each occurrence counts 1 / b.
    """
    kept = [trace for trace in traces if trace.steps]
    if not kept:
        return StepTimes(float("nan"), float("nan"))
    share = np.concatenate([1.0 / item.batch for item in kept])
    draft = np.concatenate([item.draft_us for item in kept])
    verify = np.concatenate([item.verify_us for item in kept])
    return StepTimes(float(np.average(draft, weights=share)), float(np.average(verify, weights=share)))


def costs(speculative: StepTimes, plain: StepTimes, gamma: int) -> Costs:
    """The cost of one draft length.

    The means include steps that drafted less than gamma or nothing, as tau does.
    """
    return Costs(speculative.draft_us / plain.verify_us / gamma, speculative.verify_us / plain.verify_us)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per target forward, (1 - alpha^(gamma+1)) / (1 - alpha)."""
    return float(gamma + 1) if alpha >= 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup_of(tau: float, gamma: int, costs: Costs) -> float:
    """Speed-up over plain decoding at tau tokens per target forward: tau / (sigma + gamma * rho)."""
    return tau / (costs.sigma + gamma * costs.rho)


def speedup(alpha: float, gamma: int, rho: float, sigma: float = 1.0) -> float:
    """Expected speed-up over plain decoding."""
    return speedup_of(expected_tokens(alpha, gamma), gamma, Costs(rho, sigma))


def best_gamma(alpha: float, rho: float, sigma: float = 1.0, most: int = 16) -> int:
    """The draft length in 0..most with the largest expected speed-up; 0 means do not speculate."""
    return max(range(most + 1), key=lambda gamma: speedup(alpha, gamma, rho, sigma) if gamma else 1.0)
