"""What a verification rule is.

Knows nothing about models or caches: it sees transformed rows and numbers.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.types import DraftRule, Proposal, Protocol, StepOutcome
from engine.sampling.rng import Randomness
from engine.sampling.target_rows import TargetRows


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """What a rule declares about itself."""

    protocol: Protocol
    lossless: bool
    """The emitted law is the target's, for any draft."""
    draft_rule: DraftRule
    """How drafts should be drawn to be accepted most often."""
    trees: bool
    """Branching proposals are understood."""
    fresh_numbers: bool = False
    """Every step needs numbers of its own, because a decision looks at those of positions that it does not decide."""
    options: Mapping[str, typing.Any] = field(default_factory=dict)
    """What the rule runs with, its defaults included."""


class Verifier(typing.Protocol):
    """Decides which drafted tokens are kept and what follows them."""

    facts: VerifierFacts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """The verdict on one request's proposal. Always emits at least one token."""
        ...
