"""Sampling parameters nearer to their defaults.

Which can be dropped, and how far the others can be pulled, is found by trying.
Knows nothing about requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from audit.minimize.shrink import fewest
from engine.core.types import SamplingParams

DEFAULTS: Final[Mapping[str, Any]] = {each.name: each.default for each in dataclasses.fields(SamplingParams)}
NAMES: Final = tuple(name for name in DEFAULTS if name not in ("seed", "max_new_tokens"))
"""What turns logits into a distribution, and ends; lengths are looked for elsewhere, a seed is no setting."""
NEUTRAL: Final[Mapping[str, Any]] = {**DEFAULTS, "temperature": 1.0}
"""Where a value changes nothing; temperature 0 changes most of all."""
STEPS: Final = 4
"""Times that a number is pulled; after that it is within a sixteenth of where it stops."""

Stays = Callable[[SamplingParams], bool]


def set_names(params: SamplingParams) -> tuple[str, ...]:
    """Those that are not at their defaults, in the order of `SamplingParams`."""
    return tuple(name for name in NAMES if getattr(params, name) != DEFAULTS[name])


def plainer(params: SamplingParams, stays: Stays) -> SamplingParams:
    """Parameters of which none can be dropped alone, each as near to doing nothing as trying found."""
    given = set_names(params)

    def only(names: tuple[str, ...]) -> SamplingParams:
        dropped = {name: DEFAULTS[name] for name in given if name not in names}
        return dataclasses.replace(params, **dropped)

    kept = fewest(given, lambda names: stays(only(names)))
    plain = only(kept)
    for name in kept:
        plain = _pulled(plain, name, stays)
    return plain


def _pulled(params: SamplingParams, name: str, stays: Stays) -> SamplingParams:
    value = getattr(params, name)
    if isinstance(value, tuple):
        items = fewest(value, lambda some: stays(_with(params, name, some)), least=1)
        return _with(params, name, items)
    if isinstance(value, bool):
        return params
    for wanted in (NEUTRAL[name], *[None] * STEPS):
        nearer = _nearer(name, getattr(params, name)) if wanted is None else wanted
        if nearer == getattr(params, name) or nearer == DEFAULTS[name]:
            continue
        trial = _with(params, name, nearer)
        if stays(trial):
            params = trial
        elif wanted is None:
            break
    return params


def _with(params: SamplingParams, name: str, value: Any) -> SamplingParams:
    changed: dict[str, Any] = {name: value}
    return dataclasses.replace(params, **changed)


def _nearer(name: str, value: float) -> float:
    """Half the way to where it changes nothing; for top_k that is the whole vocabulary."""
    if name == "top_k":
        return value * 2
    if isinstance(value, int):
        return value // 2
    return round((value + float(NEUTRAL[name])) / 2, 3)
