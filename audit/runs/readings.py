"""The arms that read a candidate's tokens instead of decoding: which pass of the engine each kind uses, and when.

A reread is planned only where a check can use it: its bits mean something only under a promise, and without one it
costs as much as decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from audit.checks.bitwise import keeps
from audit.evidence.records import ArmKind
from engine.backends.interface import Anchoring, Engine, Rereading
from engine.core.types import Generation, Request
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass of an engine over given tokens."""

    config: Callable[[], Effective]
    read: Callable[[Request, Sequence[int]], Generation]


def can_read(kind: ArmKind, engine: Engine) -> bool:
    """True if the engine has the pass of a reading arm."""
    return isinstance(engine, Anchoring if kind is ArmKind.ANCHOR else Rereading)


def reading(kind: ArmKind, engine: Engine) -> Reading:
    """The engine's pass for a kind of arm for which `can_read` holds."""
    if kind is ArmKind.ANCHOR:
        assert isinstance(engine, Anchoring)
        return Reading(engine.anchor_config, engine.anchor)
    assert isinstance(engine, Rereading)
    return Reading(engine.reread_config, engine.reread)


def promises_chains(effective: Effective) -> bool:
    """True if the numerics in effect promise that several tokens of a forward have the bits of each alone."""
    return effective.numerics is not None and keeps(effective.numerics.promises, "chain")
