"""Fewer items and smaller numbers that keep a property which is only known by trying.

Delta debugging after Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input" (2002), by complements only. Knows nothing about what is
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fewest(items: Sequence[T], stays: Callable[[tuple[T, ...]], bool], least: int = 0) -> tuple[T, ...]:
    """Items in their order, none of which can be left out alone.

    Leaves out halves, then quarters, down to single items, and single items again
    until each of them is needed. That all `items` have the property is taken for granted.

    Args:
        items: what to choose from.
        stays: whether a choice has the property.
        least: never fewer than so many.
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
    """A number from `low` to `high` with the property, the one below it without; by bisection.

    It is the smallest of all where every larger number has the property too.
    That `high` has it is taken for granted.
    """
    while low < high:
        middle = (low + high) // 2
        if stays(middle):
            high = middle
        else:
            low = middle + 1
    return high
