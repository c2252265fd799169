"""Broken content of a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IntegrityViolation:
    """One place where the store changed after the run finished."""

    place: str
    message: str
