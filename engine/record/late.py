"""Traces whose columns are read at the first access, for readers of many requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.record.trace import COLUMNS, Trace, TraceHeader


class _Late(Trace):
    """A trace whose columns are read at the first access; until then their slots are empty."""

    __slots__ = ("_read",)
    _read: Callable[[], Trace]

    def __getattr__(self, name: str) -> Any:
        """Called for empty slots only."""
        if name not in COLUMNS:
            raise AttributeError(name)
        whole = self._read()
        for column in COLUMNS:
            object.__setattr__(self, column, getattr(whole, column))
        return object.__getattribute__(self, name)


def late(header: TraceHeader, read: Callable[[], Trace]) -> Trace:
    """The trace of `read`, decoded at the first access to a column; the header is available at once."""
    trace = object.__new__(_Late)
    object.__setattr__(trace, "header", header)
    object.__setattr__(trace, "_read", read)
    return trace
