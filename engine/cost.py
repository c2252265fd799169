"""The cost model of chain speculation, nothing else (Leviathan et al. 2211.17192, section 3).

alpha is the chance that a drafted token is accepted, taken as independent of
its position; rho the cost of one draft forward in units of one target forward;
sigma the cost of verifying gamma + 1 tokens in the same unit. Knows nothing
about measured runs.
"""

from __future__ import annotations


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per target forward, (1 - alpha^(gamma+1)) / (1 - alpha)."""
    return float(gamma + 1) if alpha >= 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, rho: float, sigma: float = 1.0) -> float:
    """Expected speed-up over plain decoding."""
    return expected_tokens(alpha, gamma) / (gamma * rho + sigma)


def best_gamma(alpha: float, rho: float, sigma: float = 1.0, most: int = 16) -> int:
    """The draft length in 0..most with the largest expected speed-up; 0 means do not speculate."""
    return max(range(most + 1), key=lambda gamma: speedup(alpha, gamma, rho, sigma) if gamma else 1.0)
