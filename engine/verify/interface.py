"""The interface of a verification rule.

A rule sees transformed rows and random numbers, never models or caches.
"""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.types import DraftRule, Proposal, Protocol, StepOutcome
from engine.sampling.rng import Randomness
from engine.sampling.target_rows import TargetRows


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """A rule's declared properties."""

    protocol: Protocol
    lossless: bool
    """The emitted law is the target's, for any draft."""
    draft_rule: DraftRule
    """The draft rule with the highest acceptance rate."""
    trees: bool
    """The rule accepts branching proposals."""
    fresh_numbers: bool = False
    """Every step needs its own random numbers, because a decision reads numbers of positions that it does not decide.
    """
    options: Mapping[str, typing.Any] = field(default_factory=dict)
    """The rule's options in effect, defaults included."""


class Verifier(typing.Protocol):
    """Decides which drafted tokens are kept and which token follows them."""

    facts: VerifierFacts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """The verdict on one request's proposal. Always emits at least one token."""
