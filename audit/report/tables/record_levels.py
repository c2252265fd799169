"""The record levels of a run's candidates: in effect, and as the suite requested them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from audit.store import StoredArm


def record_lines(arms: Iterable[StoredArm]) -> Iterator[str]:
    """A line for each pair of levels, with its arms; arms that got the level that they requested have none."""
    pairs: dict[str, list[str]] = {}
    for arm in arms:
        requested = arm.spec.get("requested_record")
        if requested:
            pairs.setdefault(f"{arm.effective.record}, requested {requested}", []).append(arm.name)
    yield from (f"{levels}: {', '.join(names)}" for levels, names in pairs.items())
