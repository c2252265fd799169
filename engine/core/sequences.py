"""Sequences compared from their beginnings."""

from collections.abc import Sequence


def agreeing(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the common beginning."""
    least = min(len(left), len(right))
    if tuple(left[:least]) == tuple(right[:least]):
        return least
    return next(at for at in range(least) if left[at] != right[at])
