"""The parts from which a proposer is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.core.types import DraftRule
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.interface import SlotCache, TargetModel
from engine.proposers.confidence import EndRule, unsure
from engine.proposers.interface import Proposer
from engine.sampling.draw import DrawRule, SiblingRule, draw_siblings


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target and the loop's cache, for proposers that draft with the target itself.

    Columns after the committed tokens are scratch: the target's forward overwrites all that a proposer writes there.
    """

    model: TargetModel
    cache: SlotCache


class SharedMemory(Protocol):
    """The state that a proposer with state `shared` carries between requests, apart from the proposer itself."""

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that drafts depend on."""

    def reset(self) -> None:
        """Forget finished requests."""


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """`rows` and `capacity` size the caches; `rule` is the draft rule that the verifier requires.

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
    """Most nodes per step that the arm requests; 0 if unspecified."""
    memory: SharedMemory | None = None
    """The state that earlier proposers of the arm carried over; None if there is none."""
    draw_siblings: SiblingRule = draw_siblings
    unsure: EndRule = unsure

    @property
    def drafts(self) -> tuple[TargetModel, ...]:
        """All draft models, in the arm's order."""
        return (self.draft, *self.others) if self.draft is not None else self.others


def memory_of(proposer: Proposer) -> SharedMemory | None:
    """The state that a proposer carries over to the arm's next one; None if stateless."""
    memory: SharedMemory | None = getattr(proposer, "memory", None)
    return memory
