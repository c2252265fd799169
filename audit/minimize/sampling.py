"""Moves sampling parameters nearer to their defaults.

Trials decide which parameters can be dropped and how far the others can move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from audit.minimize.shrink import fewest
from engine.core.structured import ConstraintSpec
from engine.core.types import SamplingParams

DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
NAMES: Final = tuple(name for name in DEFAULTS if name not in ("seed", "max_new_tokens"))
"""Parameters that shape the distribution or stop a request; other steps reduce lengths, and a seed is no setting."""
NEUTRAL: Final[Mapping[str, Any]] = {**DEFAULTS, "temperature": 1.0}
"""Neutral values; temperature 0 is the least neutral."""
STEPS: Final = 4
"""Halvings per number; the result is within a sixteenth of the limit."""

Stays = Callable[[SamplingParams], bool]


def set_names(params: SamplingParams) -> tuple[str, ...]:
    """The parameters that differ from their defaults, in the order of `SamplingParams`."""
    return tuple(name for name in NAMES if getattr(params, name) != DEFAULTS[name])


def plainer(params: SamplingParams, stays: Stays) -> SamplingParams:
    """Parameters of which none can be dropped alone, each as near to its neutral value as trials allow."""
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
    if isinstance(value, bool | ConstraintSpec):
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
    """Half way to the neutral value; for top_k that is the whole vocabulary."""
    if name == "top_k":
        return value * 2
    if isinstance(value, int):
        return value // 2
    return round((value + float(NEUTRAL[name])) / 2, 3)
