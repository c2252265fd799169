"""Limits on the parameters that a suite gave its own checks.

A policy's limit holds first. A parameter without one may not be looser than the check's default, so that a suite
cannot certify itself by a margin of 1. Every numeric parameter of every check has a direction here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Looser(Enum):
    """The direction in which a parameter makes a check easier to pass."""

    LARGER = "larger"
    SMALLER = "smaller"
    EITHER = "either"
    """An error probability: a smaller one finds fewer faults, a larger one proves less."""
    NEITHER = "neither"
    """It selects what is shown or judged, or makes the check only stricter."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The smallest and largest accepted value of a parameter; None leaves a side open."""

    least: float | None = None
    most: float | None = None


ALPHA: Final = Limit(1e-4, 0.05)
"""Error probabilities that every policy accepts unless it says otherwise."""
LARGER: Final = (
    "bias_margin distance_factor half_noise half_tolerance lead_factor lead_margin leak_margin least_distance "
    "least_lead least_single margin max_numerical max_numerical_per_1000 max_single max_untriaged noise_bound "
    "most_noise position_margin rank_margin slack tie times_floor tolerance maximum"
)
SMALLER: Final = (
    "confidence max_tokens min_answers min_bits min_decisions min_noise min_positions min_prompts min_speedup "
    "min_tokens min_tokens_per_forward permutations"
)
DIRECTIONS: Final[Mapping[str, Looser]] = {
    **dict.fromkeys(LARGER.split(), Looser.LARGER),
    **dict.fromkeys(SMALLER.split(), Looser.SMALLER),
    "alpha": Looser.EITHER,
    "max_findings": Looser.NEITHER,
    # 0 asks for no bound, which is also its default
    "max_p99_ratio": Looser.NEITHER,
}
SWITCHES: Final = ("force", "refusals")
"""Parameters that are true or false; a suite may not switch them on by itself."""
STRICTER: Final = ("within_margin",)
"""Those that only ask for more where they are on."""


def violations(
    used: Mapping[str, Any], defaults: Mapping[str, Any], limits: Mapping[str, Limit]
) -> Iterator[tuple[str, str]]:
    """The parameters of a check that are beyond the limits, and in which way."""
    for name, default in sorted(defaults.items()):
        value = used.get(name, default)
        if name in STRICTER:
            continue
        if name in SWITCHES:
            if value and not default and name not in limits:
                yield name, f"{name} is on, which the policy does not state"
        elif isinstance(default, int | float):
            limit = limits.get(name) or default_limit(name, float(default))
            yield from ((name, text) for text in _beyond(name, value, limit))


def default_limit(name: str, default: float) -> Limit:
    """The limit of a parameter that the policy does not state."""
    direction = DIRECTIONS.get(name, Looser.NEITHER)
    if direction is Looser.EITHER:
        return ALPHA
    if direction is Looser.LARGER:
        return Limit(most=default)
    return Limit(least=default) if direction is Looser.SMALLER else Limit()


def _beyond(name: str, value: Any, limit: Limit) -> Iterator[str]:
    # NaN meets no comparison, so the accepted side is what is asked
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{name} is {value!r}, not a number"
    elif limit.most is not None and not value <= limit.most:
        yield f"{name} is {value:g}, the policy accepts at most {limit.most:g}"
    elif limit.least is not None and not value >= limit.least:
        yield f"{name} is {value:g}, the policy accepts at least {limit.least:g}"
