"""Reduces sets of items and numbers while a property holds that only trials can show.

Delta debugging after Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input" (2002), by complements only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fewest(items: Sequence[T], stays: Callable[[tuple[T, ...]], bool], least: int = 0) -> tuple[T, ...]:
    """Return a subset of the items, in order, from which no single item can be left out.

    Drops halves, then quarters, down to single items, and repeats single items
    until each of them is needed. Assumes that all `items` together have the property.

    Args:
        items: the candidates.
        stays: returns True if a choice has the property.
        least: minimum number of items to keep.
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

    It is the smallest of all if every larger number has the property too.
    Assumes that `high` has it.
    """
    while low < high:
        middle = (low + high) // 2
        if stays(middle):
            high = middle
        else:
            low = middle + 1
    return high
