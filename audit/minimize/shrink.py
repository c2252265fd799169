"""Reduces sets of items, numbers and sampling parameters while a property holds that only trials can show.

Delta debugging after Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), by complements
only. Sampling parameters move nearer to their defaults.

"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from engine.core.structured import ConstraintSpec
from engine.core.types import SamplingParams

T = TypeVar("T")


def fewest(items: Sequence[T], stays: Callable[[tuple[T, ...]], bool], least: int = 0) -> tuple[T, ...]:
    """Return at least `least` of the items, in order, from which no single item can be left out.

    Drops halves, then quarters, down to single items, and repeats single items until each of them is needed. `stays`
    says whether a choice has the property; all `items` together are assumed to have it.
    """
    kept, size = tuple(items), max(1, len(items) // 2)
    while True:
        fewer = _without_chunks(kept, size, stays, least)
        if size == 1 and fewer == kept:
            return kept
        kept, size = fewer, max(1, size // 2)


def _without_chunks(
    kept: tuple[T, ...], size: int, stays: Callable[[tuple[T, ...]], bool], least: int
) -> tuple[T, ...]:
    at = 0
    while at < len(kept):
        fewer = kept[:at] + kept[at + size :]
        if len(fewer) >= least and stays(fewer):
            kept = fewer
        else:
            at += size
    return kept


def smallest(low: int, high: int, stays: Callable[[int], bool]) -> int:
    """Bisect for a number from `low` to `high` with the property whose predecessor lacks it.

    It is the smallest of all if every larger number has the property too. Assumes that `high` has it.
    """
    while low < high:
        middle = (low + high) // 2
        if stays(middle):
            high = middle
        else:
            low = middle + 1
    return high


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
        return dataclasses.replace(params, **{name: DEFAULTS[name] for name in given if name not in names})

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
    return value // 2 if isinstance(value, int) else round((value + float(NEUTRAL[name])) / 2, 3)
