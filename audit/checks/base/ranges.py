"""The values that parameters of checks may have. Statistics beyond them are undefined, or need endless samples.

A parameter of one name means the same in every check. Policies limit further what certifies (`audit.gate.parameters`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

SHARE: Final = (1e-6, 0.999999)
"""Of a margin: a bound on it needs about its inverse square of tokens, and one of 1 bounds nothing."""
ERROR: Final = (1e-9, 0.5)
COUNT: Final = (0, 1e9)
SIZE: Final = (0.0, 1e9)
ALMOST: Final = 1 - 1e-9
CONFIDENCE: Final = (0.5, ALMOST)

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys("bias_margin leak_margin margin most_noise position_margin rank_margin".split(), SHARE),
    **dict.fromkeys("half_noise half_tolerance max_numerical max_untriaged tolerance".split(), (0.0, 1.0)),
    **dict.fromkeys(
        "distance_factor lead_factor lead_margin least_distance least_lead least_single tie times_floor".split(), SIZE
    ),
    **dict.fromkeys("max_numerical_per_1000 max_p99_ratio max_single min_speedup min_tokens_per_forward".split(), SIZE),
    **dict.fromkeys("max_findings maximum min_answers min_bits min_decisions min_noise min_positions".split(), COUNT),
    **dict.fromkeys("min_prompts min_tokens slack".split(), COUNT),
    "alpha": ERROR,
    "confidence": CONFIDENCE,
    "max_tokens": (1, 1e9),
    "noise_bound": (-1.0, 1e9),
    "permutations": (1, 1e6),
}
"""The smallest and the largest accepted number of each parameter."""


def wrong_parameters(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The parameters outside their ranges, and the fractions of what is counted, in words with the fix."""
    for key, value in values.items():
        accepted = RANGES.get(key)
        # liveness has a margin of 1 by default: its claim is about every single request
        if accepted is None or not isinstance(value, int | float) or value == defaults[key]:
            continue
        least, most = accepted
        if not least <= value <= most:
            bounds = f"a number from {_shown(least)} to {_shown(most)}"
            yield key, f"{key} is {value}; write {bounds}"
        elif _whole(defaults[key]) and value != int(value):
            yield key, f"{key} is {value}; write a whole number"


def as_declared(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values with whole numbers where the defaults are whole: 20.0 is an integer in JSON."""
    whole = {key for key in values if key in RANGES and _whole(defaults[key])}
    return {key: int(one) if key in whole and isinstance(one, float) else one for key, one in values.items()}


def _whole(default: Any) -> bool:
    return isinstance(default, int) and not isinstance(default, bool)


def _shown(number: float) -> str:
    return "0.999999999" if number == ALMOST else f"{number:g}"
