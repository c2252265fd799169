"""The situation that each fault of the catalogue needs.

A run in which the situation does not occur cannot tell the fault from a clean engine. This module counts no
occurrences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from engine import faults
from engine.faults.interface import Situation


def by_situation(names: Iterable[str] = tuple(faults.REGISTRY)) -> Mapping[Situation, tuple[str, ...]]:
    """The faults of each situation, in the order of situations; situations without any are left out."""
    needed = {name: faults.load(name).situation for name in names}
    groups = {which: tuple(name for name, need in needed.items() if need == which) for which in get_args(Situation)}
    return {which: group for which, group in groups.items() if group}


def without_fault() -> tuple[Situation, ...]:
    """The situations that no fault of the catalogue needs."""
    needed = by_situation()
    return tuple(which for which in get_args(Situation) if which not in needed)
