"""What a proposer may be built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.core.types import DraftRule
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.interface import SlotCache, TargetModel
from engine.proposers.interface import Proposer
from engine.sampling.draw import DrawRule, SiblingRule, draw_siblings


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target and the loop's cache, for proposers that draft with the target itself.

    Columns after the committed tokens are scratch: whatever a proposer writes there, the target's
    forward writes anew.
    """

    model: TargetModel
    cache: SlotCache


class SharedMemory(Protocol):
    """What a proposer of state `shared` remembers of finished requests, apart from the proposer itself."""

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that drafts depend on."""
        ...

    def reset(self) -> None:
        """Forget finished requests."""
        ...


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """`rows` and `capacity` size the caches; `rule` is what the verifier asks of drafts.

    `draft` is the first of the arm's draft models, `others` are the rest.
    """

    rows: int
    capacity: int
    rule: DraftRule
    draw: DrawRule
    eos_ids: tuple[int, ...]
    draft: TargetModel | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[TargetModel, ...] = ()
    target: TargetSide | None = None
    head: HeadCheckpoint | None = None
    """A trained head, for families that draft with the target's hidden states."""
    gamma: int = 0
    """Most nodes per step that the arm asks for; 0 where nobody has said."""
    memory: SharedMemory | None = None
    """What earlier proposers of the arm remember of its finished requests; None where nothing is carried on."""
    draw_siblings: SiblingRule = draw_siblings

    @property
    def drafts(self) -> tuple[TargetModel, ...]:
        """All draft models, in the arm's order."""
        return (self.draft, *self.others) if self.draft is not None else self.others


def memory_of(proposer: Proposer) -> SharedMemory | None:
    """What a proposer remembers of finished requests, for the arm's next one; None if it has no such memory."""
    memory: SharedMemory | None = getattr(proposer, "memory", None)
    return memory
