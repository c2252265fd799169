"""The arms that follow a candidate's tokens instead of decoding: which pass of the engine each kind uses, and when.

A reread is planned only where a check can use it: its bits mean something only under a promise, and without one it
costs as much as decoding. Drafts are made again only where they depend on their own request alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from audit.evidence.promises import keeps
from audit.evidence.records import ArmKind, RequestRecord
from engine.backends.interface import Anchoring, Engine, Redrafting, Rereading
from engine.core.types import Generation, Request
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass of an engine along a candidate's recorded request; `read` gives None for a record that no pass can
    follow.
    """

    config: Callable[[], Effective]
    read: Callable[[Request, RequestRecord], Generation | None]


def can_read(kind: ArmKind, engine: Engine) -> bool:
    """True if the engine has the pass of a reading arm."""
    if kind is ArmKind.REDRAFT:
        return isinstance(engine, Redrafting) and not engine.effective_config().shares_state
    return isinstance(engine, Rereading if kind is ArmKind.REREAD else Anchoring)


def reading(kind: ArmKind, engine: Engine) -> Reading:
    """The engine's pass for a kind of arm for which `can_read` holds."""
    if kind in (ArmKind.ANCHOR, ArmKind.NOISE):
        assert isinstance(engine, Anchoring)
        anchor = engine.anchor
        return Reading(engine.anchor_config, lambda request, record: anchor(request, record.tokens))
    if kind is ArmKind.REDRAFT:
        assert isinstance(engine, Redrafting)
        redraft = engine.redraft
        return Reading(engine.redraft_config, lambda request, record: redraft(request, record.trace))
    assert isinstance(engine, Rereading)
    reread = engine.reread
    return Reading(engine.reread_config, lambda request, record: reread(request, record.tokens))


def promises_chains(effective: Effective) -> bool:
    """True if the numerics in effect promise that several tokens of a forward have the bits of each alone."""
    return effective.numerics is not None and keeps(effective.numerics.promises, "chain")
