"""What a proposer is: `start`, `propose`, `observe`, `finish`, and declared facts.

Calls are batch-first: one `propose` serves every active row, so that a drafting
model runs once per drafted position and not once per request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engine.errors import InvalidRequest
from engine.rng import Randomness
from engine.trees import require_valid
from engine.types import Proposal, QKind, Request, Verdict


@dataclass(frozen=True, slots=True)
class ProposerFacts:
    """What a proposer declares about itself."""

    name: str
    shape: Literal["chain", "tree"]
    q_kind: QKind
    """The kind at temperature above 0; at 0 every draft is deterministic."""
    can_couple: bool
    """It can draw with the target's own noise."""
    state: Literal["none", "request", "shared"]
    """What it remembers: nothing, the request, or other requests too."""
    hidden: tuple[int, ...] = ()
    """Target layers whose hidden states it needs."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """One active row, as a proposer sees it."""

    row: int
    request: Request
    history: Sequence[int]
    """Prompt and committed tokens."""
    budget: int
    """Most nodes that may be drafted now; 0 or more."""
    randomness: Randomness


class Proposer(Protocol):
    """Yields draft tokens by any means."""

    facts: ProposerFacts

    def start(self, context: Context) -> None:
        """A request enters a row; whatever the row knew before is void."""
        ...

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One proposal per context, each of at most its budget; an empty one is fine."""
        ...

    def observe(self, context: Context, verdict: Verdict) -> None:
        """The verdict on the row's last proposal; `context.history` already holds the emitted tokens."""
        ...

    def finish(self, row: int) -> None:
        """The row's request is done."""
        ...


def require_fits(proposal: Proposal, context: Context) -> None:
    """Refuse a proposal that the caches have no columns for, or whose tree is not one.

    Raises:
        InvalidRequest: more nodes than the budget, or a parent that does not come before its child.
    """
    require_valid(proposal.tree)
    if len(proposal.tree) > context.budget:
        raise InvalidRequest(
            f"request {context.request.id}: the proposer drafted {len(proposal.tree)} tokens, "
            f"its budget was {context.budget}"
        )
