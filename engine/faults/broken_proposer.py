"""A proposer whose proposals are changed on the way to the verifier, for faults around drafting.

Knows nothing about which proposer is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.core.types import Proposal, QKind, StepOutcome, Tree
from engine.decode.seams import EngineParts
from engine.faults.chain_walk import Origin
from engine.faults.interface import SAMPLED_SCENARIO, Fault, Scenario, Suits
from engine.proposers.interface import Context, Proposer

Ask = Callable[[Context], Context]
Offer = Callable[[Proposal], Proposal]


class ChangedProposer:
    """Asks with changed contexts, and offers changed proposals."""

    def __init__(self, inner: Proposer, ask: Ask, offer: Offer) -> None:
        self._inner, self._ask, self._offer = inner, ask, offer
        self.facts = inner.facts

    def start(self, context: Context) -> None:
        """As it is."""
        self._inner.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One changed proposal per context."""
        return [self._offer(each) for each in self._inner.propose([self._ask(context) for context in contexts])]

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """As it is."""
        self._inner.observe(context, verdict)

    def finish(self, row: int) -> None:
        """As it is."""
        self._inner.finish(row)


def as_asked(context: Context) -> Context:
    """Nothing changed."""
    return context


def as_offered(proposal: Proposal) -> Proposal:
    """Nothing changed."""
    return proposal


def shortened(proposal: Proposal, count: int) -> Proposal:
    """The first `count` tokens of a chain, as if no more had been drafted."""
    if count >= len(proposal.tree):
        return proposal
    if not count:
        return replace(proposal, tree=Tree(), q_kind=QKind.NONE, q=None, uniforms=None)
    q = None if proposal.q is None else proposal.q[:count]
    uniforms = None if proposal.uniforms is None else proposal.uniforms[:count]
    return replace(proposal, tree=Tree.chain(proposal.tree.tokens[:count]), q=q, uniforms=uniforms)


def proposer_fault(
    name: str,
    origin: Origin,
    ask: Ask = as_asked,
    offer: Offer = as_offered,
    suits: Suits = Suits(shape="chain"),  # noqa: B008 - frozen
    scenario: Scenario = SAMPLED_SCENARIO,
) -> Fault:
    """A fault on the way into or out of a proposer."""

    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, proposer=lambda inner: ChangedProposer(parts.proposer(inner), ask, offer))

    return Fault(name, origin.breaks, origin.upstream, origin.seen_from, ("proposer",), apply, suits, scenario)
