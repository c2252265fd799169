"""Sample size that a test needs to detect an effect, and the effect it can detect.

`*_need` functions turn an effect into a number of units, `*_effect` functions a number of units into the smallest
effect detected with the requested power. Replay needs no approximation. Scores and proportions use the normal law, and
bounds of a mean the widths of Maurer and Pontil 2009. All functions trust the given effect and variances. Cost:
constant, or a bisection.
"""

import math

from audit.stats.laws import normal_isf, normal_ppf
from audit.stats.sample_size import SampleSize

ALPHA = 0.01
POWER = 0.9
MOST = 10**15
"""More units than this count as unattainable."""


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


def bernoulli_need(expected: float, effect: float, alpha: float = ALPHA, power: float = POWER) -> SampleSize:
    """Trials for a two-sided test of a known probability `expected` to detect `expected` + `effect`."""
    actual = expected + effect
    _require(effect != 0.0 and 0.0 <= expected <= 1.0 and 0.0 <= actual <= 1.0, "probabilities outside [0, 1]")
    null, other = (math.sqrt(chance * (1.0 - chance)) for chance in (expected, actual))
    root = float(normal_isf(alpha / 2)) * null + float(normal_ppf(power)) * other
    return SampleSize(max(1, _whole((root / effect) ** 2)), "trials", effect, alpha, power)


def non_inferiority_need(
    discordance: float, margin: float, difference: float = 0.0, alpha: float = ALPHA, power: float = POWER
) -> SampleSize:
    """Pairs to show one-sidedly that the loss is below `margin` if it is `difference` (0: no loss)."""
    room = margin - difference
    _require(room > 0.0 and 0.0 < discordance <= 1.0, "the loss has to lie below the margin")
    variance = discordance - difference**2
    return SampleSize(_whole(detectable_shift(alpha, power) ** 2 * variance / room**2), "prompts", margin, alpha, power)


def zero_need(rate: float, unit: str, alpha: float = ALPHA) -> SampleSize:
    """Units without a single event that bound an event's rate by `rate` with confidence 1 - alpha."""
    _require(0.0 < rate < 1.0, f"rate {rate} is not in (0, 1)")
    return SampleSize(math.ceil(math.log(alpha) / math.log1p(-rate)), unit, rate, alpha, 1.0)


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


def _whole(units: float) -> int:
    return math.ceil(units) if units < MOST else MOST


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
