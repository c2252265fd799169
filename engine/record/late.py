"""Traces whose columns are read at the first access, for readers of many requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.record.trace import COLUMNS, Trace, TraceHeader, decode


class _Late(Trace):
    """A trace whose columns are decoded at the first access; until then their slots are empty."""

    __slots__ = ("_payload",)
    _payload: Callable[[], bytes]

    def __getattr__(self, name: str) -> Any:
        """Called for empty slots only."""
        if name not in COLUMNS:
            raise AttributeError(name)
        whole = decode(self._payload())
        for column in COLUMNS:
            object.__setattr__(self, column, getattr(whole, column))
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process holds the bytes, which take a third of the columns' memory."""
        return _of_bytes, (self.header, self._payload())


def late(header: TraceHeader, payload: Callable[[], bytes]) -> Trace:
    """The trace of `payload`, which is read at the first access to a column; the header is available at once."""
    trace = object.__new__(_Late)
    object.__setattr__(trace, "header", header)
    object.__setattr__(trace, "_payload", payload)
    return trace


def _of_bytes(header: TraceHeader, payload: bytes) -> Trace:
    return late(header, lambda: payload)
