"""Sample size that a test needs to detect an effect, and the effect it can detect.

`*_need` functions turn an effect into a number of units, `*_effect` functions a
number of units into the smallest effect detected with the requested power. Replay
and the exact binomial power need no approximation. Scores and proportions use the
normal law (for McNemar: Connor 1987), the smooth test the noncentral chi-square of
its limit, the sequential mixture Wald's growth rate with a normal spread, and
bounds of a mean the widths of Maurer and Pontil 2009. Tests without a formula are
simulated (`simulated_power`). All functions trust the given effect and variances.
Cost: constant, a root search, or the caller's simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy

from audit.stats.binomial import clopper_pearson
from audit.stats.laws import binomial_cdf, binomial_pmf, binomial_sf, chi2_isf, ncx2_sf, normal_isf, normal_ppf
from audit.stats.sample_size import SampleSize

ALPHA = 0.01
POWER = 0.9
MOST = 10**15
"""More units than this count as unattainable."""


@dataclass(frozen=True, slots=True)
class SimulatedPower:
    """The share of `runs` simulated trials that rejected, with a 99 % Clopper-Pearson interval."""

    power: float
    low: float
    high: float
    runs: int


def detectable_shift(alpha: float, power: float = POWER) -> float:
    """Standard errors by which a mean must exceed a one-sided bound at `alpha` to be found with probability `power`.

    A two-sided test takes half its level.
    """
    return float(normal_isf(alpha) + normal_ppf(power))


def replay_need(rate: float, power: float = POWER) -> SampleSize:
    """Decisions until a deterministic comparison meets the first violation at `rate`; it has no false alarms."""
    _require(0.0 < rate <= 1.0, f"rate {rate} is not in (0, 1]")
    units = 1 if rate == 1.0 else math.ceil(math.log1p(-power) / math.log1p(-rate))
    return SampleSize(units, "decisions", rate, 0.0, power)


def replay_effect(decisions: int, power: float = POWER) -> float:
    """The rate of violations at which `decisions` contain one with probability `power`; 1 without decisions."""
    return -math.expm1(math.log1p(-power) / decisions) if decisions else 1.0


def score_need(
    effect: float, variance: float, span: float, alpha: float = ALPHA, power: float = POWER, unit: str = "tokens"
) -> SampleSize:
    """Tokens for a two-sided score martingale to show a share `effect` of tokens from q.

    Args:
        effect: the share, in (0, 1].
        variance: mean of Var_p s per token.
        span: mean of E_q s - E_p s per token.
        alpha: level of the two-sided test.
        power: probability of detection.
        unit: name of the counted unit.
    """
    _require(effect > 0.0 and span > 0.0, "an effect and a span above 0 are needed")
    return SampleSize(
        _whole(detectable_shift(alpha / 2, power) ** 2 * variance / (effect * span) ** 2), unit, effect, alpha, power
    )


def score_effect(variance: float, span: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The detectable share, z sqrt(sum of Var_p s) / sum of (E_q s - E_p s); infinite without a span."""
    return detectable_shift(alpha / 2, power) * math.sqrt(variance) / span if span > 0 else math.inf


def bernoulli_need(expected: float, effect: float, alpha: float = ALPHA, power: float = POWER) -> SampleSize:
    """Trials for a two-sided test of a known probability `expected` to detect `expected` + `effect`."""
    actual = expected + effect
    _require(effect != 0.0 and 0.0 <= expected <= 1.0 and 0.0 <= actual <= 1.0, "probabilities outside [0, 1]")
    null, other = (math.sqrt(chance * (1.0 - chance)) for chance in (expected, actual))
    root = float(normal_isf(alpha / 2)) * null + float(normal_ppf(power)) * other
    return SampleSize(max(1, _whole((root / effect) ** 2)), "trials", effect, alpha, power)


def bernoulli_power(trials: int, expected: float, actual: float, alpha: float = ALPHA) -> float:
    """Exact power of the two-sided binomial test that doubles the smaller tail."""
    counts = np.arange(trials + 1)
    tails = np.minimum(binomial_cdf(counts, trials, expected), binomial_sf(counts - 1, trials, expected))
    return float(np.sum(binomial_pmf(counts, trials, actual)[2.0 * tails <= alpha]))


def smooth_power(n: int, shift: float, alpha: float = ALPHA, degrees: int = 4) -> float:
    """Power of the smooth test of `n` numbers whose component means have squared length `shift`."""
    critical = float(chi2_isf(alpha, degrees))
    return float(ncx2_sf(critical, degrees, n * shift)) if shift > 0 else alpha


def smooth_need(shift: float, alpha: float = ALPHA, power: float = POWER, degrees: int = 4) -> SampleSize:
    """Tokens for the smooth test; `shift` is the squared length of the mean of its `degrees` components."""
    _require(shift > 0.0, "a shift above 0 is needed")
    return SampleSize(_whole(_noncentrality(alpha, power, degrees) / shift), "tokens", shift, alpha, power)


def smooth_effect(n: int, alpha: float = ALPHA, power: float = POWER, degrees: int = 4) -> float:
    """The squared length of the components' mean that `n` tokens can detect."""
    return _noncentrality(alpha, power, degrees) / n if n else math.inf


def mcnemar_need(discordance: float, difference: float, alpha: float = ALPHA, power: float = POWER) -> SampleSize:
    """Pairs for a two-sided McNemar test (Connor 1987).

    `discordance` is the share of pairs that differ, `difference` worse minus better.
    """
    _require(0.0 < abs(difference) <= discordance <= 1.0, "0 < |difference| <= discordance <= 1 is needed")
    spread = math.sqrt(discordance - difference**2)
    root = float(normal_isf(alpha / 2)) * math.sqrt(discordance) + float(normal_ppf(power)) * spread
    return SampleSize(_whole((root / difference) ** 2), "prompts", difference, alpha, power)


def non_inferiority_need(
    discordance: float, margin: float, difference: float = 0.0, alpha: float = ALPHA, power: float = POWER
) -> SampleSize:
    """Pairs to show one-sidedly that the loss is below `margin` if it is `difference` (0: no loss)."""
    room = margin - difference
    _require(room > 0.0 and 0.0 < discordance <= 1.0, "the loss has to lie below the margin")
    variance = discordance - difference**2
    return SampleSize(_whole(detectable_shift(alpha, power) ** 2 * variance / room**2), "prompts", margin, alpha, power)


def zero_need(rate: float, alpha: float = ALPHA) -> SampleSize:
    """Units without a single event that bound an event's rate by `rate` with confidence 1 - alpha."""
    _require(0.0 < rate < 1.0, f"rate {rate} is not in (0, 1)")
    return SampleSize(math.ceil(math.log(alpha) / math.log1p(-rate)), "units without event", rate, alpha, 1.0)


def bound_width(n: int, variance: float, alpha: float = ALPHA) -> float:
    """Width of the empirical Bernstein bound above the mean of `n` numbers in [0, 1] (Maurer and Pontil, theorem 4)."""
    if n < 2:
        return 1.0
    log = math.log(2.0 / alpha)
    return min(1.0, math.sqrt(2.0 * variance * log / n) + 7.0 * log / (3.0 * (n - 1)))


def bound_need(width: float, variance: float, alpha: float = ALPHA, unit: str = "positions") -> SampleSize:
    """Numbers in [0, 1] for an empirical Bernstein bound within `width` of their mean."""
    _require(0.0 < width < 1.0, f"width {width} is not in (0, 1)")
    low, high = 1, 2
    while bound_width(high, variance, alpha) > width:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound_width(middle, variance, alpha) > width else (low, middle)
    return SampleSize(high, unit, width, alpha, 1.0)


def e_process_need(
    growth: float, components: int = 1, alpha: float = ALPHA, power: float = POWER, variance: float | None = None
) -> SampleSize:
    """Tokens for a mixture of `components` equally weighted bets to reach 1 / alpha.

    (ln 1/alpha + ln K) / KL tokens give even odds; `power` adds the spread of
    the log wealth at the end, before which its maximum may cross. `growth` is
    KL(r || p) per token in nats for the true r, `variance` that of log r/p per
    token, by default 2 KL, its limit for small effects.
    """
    _require(growth > 0.0, "a growth above 0 is needed")
    goal = math.log(1.0 / alpha) + math.log(components)
    spread = float(normal_ppf(power)) * math.sqrt(2.0 * growth if variance is None else variance)
    # n KL - spread sqrt(n) = goal, solved for sqrt(n)
    root = (spread + math.sqrt(spread**2 + 4.0 * growth * goal)) / (2.0 * growth)
    return SampleSize(_whole(root**2), "tokens", growth, alpha, power)


def simulated_power(
    trial: Callable[[np.random.Generator], float], runs: int, generator: np.random.Generator, alpha: float = ALPHA
) -> SimulatedPower:
    """Share of runs in which `trial`, which simulates data and returns a p-value, is at or below `alpha`.

    For tests without a formula, such as permutation tests.
    """
    rejected = sum(trial(generator) <= alpha for _ in range(runs))
    interval = clopper_pearson(rejected, runs)
    return SimulatedPower(rejected / runs, interval.low, interval.high, runs)


def simulated_need(
    trial: Callable[[int, np.random.Generator], float],
    sizes: tuple[int, ...],
    runs: int,
    generator: np.random.Generator,
    *,
    effect: float,
    alpha: float = ALPHA,
    power: float = POWER,
    unit: str = "sequences",
) -> SampleSize | None:
    """The first of ascending `sizes` at which `trial` reaches `power` in `runs` runs; None if no size does."""
    for size in sizes:
        if simulated_power(partial(trial, size), runs, generator, alpha).power >= power:
            return SampleSize(size, unit, effect, alpha, power)
    return None


def _noncentrality(alpha: float, power: float, degrees: int) -> float:
    _require(0.0 < alpha < power < 1.0, "0 < alpha < power < 1 is needed")
    critical = float(chi2_isf(alpha, degrees))
    return float(scipy.optimize.brentq(lambda centre: float(ncx2_sf(critical, degrees, centre)) - power, 1e-9, 1e4))


def _whole(units: float) -> int:
    return math.ceil(units) if units < MOST else MOST


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
