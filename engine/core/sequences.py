"""Sequences compared from their beginnings, and grouped by a key."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def agreeing(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the common beginning."""
    least = min(len(left), len(right))
    if tuple(left[:least]) == tuple(right[:least]):
        return least
    return next(at for at in range(least) if left[at] != right[at])


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys and values in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
